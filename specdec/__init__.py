"""specdec: several tokens per forward pass from any Hugging Face causal model, without changing what it says."""

from specdec.backends.toy import ToyModel
from specdec.errors import ModelError, NumericsError, PluginError, RequestError, SpecdecError
from specdec.generator import Chunk, Generator, Result
from specdec.hookspecs import hookimpl
from specdec.settings import Settings
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import Drafter, Engine, Feedback, Nodes, Proposer, Request, What
from specdec.strategies.jacobi import JacobiProposer
from specdec.strategies.lookahead import LookaheadProposer
from specdec.strategies.prompt_lookup import PromptLookupProposer
from specdec.tree import ROOT, Budget, DraftTree, Role

__version__ = "0.1.0"

__all__ = [
    "ROOT",
    "AutoregressiveProposer",
    "Budget",
    "Chunk",
    "DraftTree",
    "Drafter",
    "Engine",
    "Feedback",
    "Generator",
    "JacobiProposer",
    "LookaheadProposer",
    "ModelError",
    "Nodes",
    "NumericsError",
    "PluginError",
    "PromptLookupProposer",
    "Proposer",
    "Request",
    "RequestError",
    "Result",
    "Role",
    "Settings",
    "SpecdecError",
    "ToyModel",
    "What",
    "hookimpl",
]
