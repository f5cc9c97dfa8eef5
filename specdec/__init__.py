"""specdec: several tokens per forward pass from any Hugging Face causal model, without changing what it says."""

from specdec.auditing import audit
from specdec.backends.toy import ToyModel
from specdec.comparison import compare
from specdec.errors import ModelError, NumericsError, PluginError, RequestError, SpecdecError
from specdec.generator import Generator
from specdec.hookspecs import hookimpl
from specdec.result import Chunk, Result
from specdec.settings import Settings
from specdec.strategies.auto import AutoProposer
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import Drafter, Engine, Feedback, Host, Nodes, Proposer, Request, What
from specdec.strategies.draft_model import DraftModelProposer
from specdec.strategies.jacobi import JacobiProposer
from specdec.strategies.lookahead import LookaheadProposer
from specdec.strategies.prompt_lookup import PromptLookupProposer
from specdec.tree import ROOT, Budget, DraftTree, Role
from specdec.verifiers.match import MatchVerifier
from specdec.verifiers.rejection import RejectionVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier

__version__ = "0.1.0"

__all__ = [
    "ROOT",
    "AutoProposer",
    "AutoregressiveProposer",
    "Budget",
    "Chunk",
    "DraftModelProposer",
    "DraftTree",
    "Drafter",
    "Engine",
    "Feedback",
    "Generator",
    "Host",
    "JacobiProposer",
    "LookaheadProposer",
    "MatchVerifier",
    "ModelError",
    "Nodes",
    "NumericsError",
    "PluginError",
    "PromptLookupProposer",
    "Proposer",
    "RejectionVerifier",
    "Request",
    "RequestError",
    "Result",
    "Role",
    "Settings",
    "SpecdecError",
    "ToyModel",
    "TraversalVerifier",
    "TypicalVerifier",
    "What",
    "audit",
    "compare",
    "hookimpl",
]
