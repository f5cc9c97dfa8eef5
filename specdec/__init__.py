"""specdec: several tokens per forward pass from any Hugging Face causal model, without changing what it says."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.auditing.audit import audit
    from specdec.backends.toy import ToyModel
    from specdec.comparison import compare
    from specdec.decoding.result import Chunk, Result
    from specdec.errors import ModelError, NumericsError, PluginError, RequestError, SpecdecError
    from specdec.generator import Generator
    from specdec.plugins.hookspecs import hookimpl
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

# Where each name lives: it is imported when it is first asked for, since torch alone takes more than a second.
_HOMES = {
    "specdec.auditing.audit": ("audit",),
    "specdec.backends.toy": ("ToyModel",),
    "specdec.comparison": ("compare",),
    "specdec.errors": ("ModelError", "NumericsError", "PluginError", "RequestError", "SpecdecError"),
    "specdec.generator": ("Generator",),
    "specdec.plugins.hookspecs": ("hookimpl",),
    "specdec.decoding.result": ("Chunk", "Result"),
    "specdec.settings": ("Settings",),
    "specdec.strategies.auto": ("AutoProposer",),
    "specdec.strategies.autoregressive": ("AutoregressiveProposer",),
    "specdec.strategies.base": ("Drafter", "Engine", "Feedback", "Host", "Nodes", "Proposer", "Request", "What"),
    "specdec.strategies.draft_model": ("DraftModelProposer",),
    "specdec.strategies.jacobi": ("JacobiProposer",),
    "specdec.strategies.lookahead": ("LookaheadProposer",),
    "specdec.strategies.prompt_lookup": ("PromptLookupProposer",),
    "specdec.tree": ("ROOT", "Budget", "DraftTree", "Role"),
    "specdec.verifiers.match": ("MatchVerifier",),
    "specdec.verifiers.rejection": ("RejectionVerifier",),
    "specdec.verifiers.traversal": ("TraversalVerifier",),
    "specdec.verifiers.typical": ("TypicalVerifier",),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take any name for one of the package's

    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is not None:
            value = globals()[name] = getattr(import_module(home), name)
            return value
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):  # specdec.demo, without an import of its own
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
