"""specdec: several tokens per forward pass from any Hugging Face causal model, without changing what it says."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.apps.comparison.session import compare as compare
    from specdec.apps.in_transformers.custom_generate import custom_generate as custom_generate
    from specdec.backends.toy import ToyModel as ToyModel
    from specdec.decoding.result import Result as Result
    from specdec.errors import ModelError as ModelError
    from specdec.errors import PluginError as PluginError
    from specdec.errors import RequestError as RequestError
    from specdec.errors import SpecdecError as SpecdecError
    from specdec.generator import Generator as Generator
    from specdec.plugins.hookspecs import hookimpl as hookimpl
    from specdec.sampling.distributions import NodeDistributions as NodeDistributions
    from specdec.sampling.randomness import RandomSource as RandomSource
    from specdec.strategies.base import Drafter as Drafter
    from specdec.strategies.base import Engine as Engine
    from specdec.strategies.base import Proposer as Proposer
    from specdec.strategies.draft_model.proposer import DraftModelProposer as DraftModelProposer
    from specdec.strategies.feedback import Feedback as Feedback
    from specdec.strategies.host import Host as Host
    from specdec.strategies.jacobi import JacobiProposer as JacobiProposer
    from specdec.strategies.lookahead import LookaheadProposer as LookaheadProposer
    from specdec.strategies.prompt_lookup import PromptLookupProposer as PromptLookupProposer
    from specdec.strategies.request import Request as Request
    from specdec.strategies.signals import Nodes as Nodes
    from specdec.strategies.signals import What as What
    from specdec.tree import ROOT as ROOT
    from specdec.tree import Budget as Budget
    from specdec.tree import DraftTree as DraftTree
    from specdec.tree import Role as Role
    from specdec.verifiers.base import Verdict as Verdict
    from specdec.verifiers.base import Verifier as Verifier
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)

__version__ = "0.1.0"
