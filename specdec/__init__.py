"""specdec: several tokens per forward pass from any Hugging Face causal model, without changing what it says."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.backends.toy import ToyModel
    from specdec.comparison import compare
    from specdec.decoding.result import Result
    from specdec.errors import ModelError, PluginError, RequestError, SpecdecError
    from specdec.generator import Generator
    from specdec.in_transformers.custom_generate import custom_generate
    from specdec.plugins.hookspecs import hookimpl
    from specdec.sampling.distributions import NodeDistributions
    from specdec.sampling.randomness import RandomSource
    from specdec.strategies.base import Drafter, Engine, Proposer
    from specdec.strategies.draft_model.proposer import DraftModelProposer
    from specdec.strategies.feedback import Feedback
    from specdec.strategies.host import Host
    from specdec.strategies.jacobi import JacobiProposer
    from specdec.strategies.lookahead import LookaheadProposer
    from specdec.strategies.prompt_lookup import PromptLookupProposer
    from specdec.strategies.request import Request
    from specdec.strategies.signals import Nodes, What
    from specdec.tree import ROOT, Budget, DraftTree, Role
    from specdec.verifiers.base import Verdict, Verifier

__version__ = "0.1.0"

__all__ = [
    "ROOT",
    "Budget",
    "DraftModelProposer",
    "DraftTree",
    "Drafter",
    "Engine",
    "Feedback",
    "Generator",
    "Host",
    "JacobiProposer",
    "LookaheadProposer",
    "ModelError",
    "NodeDistributions",
    "Nodes",
    "PluginError",
    "PromptLookupProposer",
    "Proposer",
    "RandomSource",
    "Request",
    "RequestError",
    "Result",
    "Role",
    "SpecdecError",
    "ToyModel",
    "Verdict",
    "Verifier",
    "What",
    "compare",
    "custom_generate",
    "hookimpl",
]

# The module of each name, imported at the first use of the name, since torch alone takes more than a second.
_HOMES = {
    "specdec.backends.toy": ("ToyModel",),
    "specdec.comparison": ("compare",),
    "specdec.decoding.result": ("Result",),
    "specdec.errors": ("ModelError", "PluginError", "RequestError", "SpecdecError"),
    "specdec.generator": ("Generator",),
    "specdec.in_transformers.custom_generate": ("custom_generate",),
    "specdec.plugins.hookspecs": ("hookimpl",),
    "specdec.sampling.distributions": ("NodeDistributions",),
    "specdec.sampling.randomness": ("RandomSource",),
    "specdec.strategies.base": ("Drafter", "Engine", "Proposer"),
    "specdec.strategies.draft_model.proposer": ("DraftModelProposer",),
    "specdec.strategies.feedback": ("Feedback",),
    "specdec.strategies.host": ("Host",),
    "specdec.strategies.jacobi": ("JacobiProposer",),
    "specdec.strategies.lookahead": ("LookaheadProposer",),
    "specdec.strategies.prompt_lookup": ("PromptLookupProposer",),
    "specdec.strategies.request": ("Request",),
    "specdec.strategies.signals": ("Nodes", "What"),
    "specdec.tree": ("ROOT", "Budget", "DraftTree", "Role"),
    "specdec.verifiers.base": ("Verdict", "Verifier"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is not None:
            value = globals()[name] = getattr(import_module(home), name)
            return value
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):  # specdec.demo, without an import of its own
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
