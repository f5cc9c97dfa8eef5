"""The plan of a request: its strategy, acceptance rule and settings, fixed while it is decoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec.errors import close_all
from specdec.settings import Settings
from specdec.strategies.base import Engine
from specdec.strategies.signals import Hidden, Nodes, Signal, TopLogits
from specdec.target import Target
from specdec.verifiers.base import Verifier


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Strategy:
    """A proposer that is bound to the target.

    Attributes:
        wants: the signals that its drafters observe.
        targets: other models that it drives, in the order in which they were opened; it may open more later.
        about_trees, about_prompts: the signals of each kind.
        tree_layers, prompt_layers: the layers whose hidden states are signals of each kind.
        num_top: the largest ``k`` of its ``TopLogits`` about trees.
    """

    name: str
    engine: Engine
    wants: frozenset[Signal]
    targets: Sequence[Target] = ()
    about_trees: tuple[Signal, ...] = field(init=False)
    about_prompts: tuple[Signal, ...] = field(init=False)
    tree_layers: frozenset[int] = field(init=False)
    prompt_layers: frozenset[int] = field(init=False)
    num_top: int = field(init=False)

    def __post_init__(self) -> None:
        about_prompts = tuple(signal for signal in self.wants if signal[0] is Nodes.PROMPT)
        about_trees = tuple(self.wants.difference(about_prompts))
        object.__setattr__(self, "about_prompts", about_prompts)
        object.__setattr__(self, "about_trees", about_trees)
        object.__setattr__(self, "prompt_layers", layers_of(about_prompts))
        object.__setattr__(self, "tree_layers", layers_of(about_trees))
        top = [what.k for _, what in about_trees if isinstance(what, TopLogits)]
        object.__setattr__(self, "num_top", max(top, default=0))

    @property
    def reads_prompts(self) -> bool:
        """True if its drafters need the signals at all positions: received now, or retained by an earlier request."""
        return bool(self.about_prompts)

    def close(self) -> None:
        """Close the engine, and then the models that it drove."""
        close_all([*self.targets, self.engine])


def layers_of(signals: Iterable[Signal]) -> frozenset[int]:
    """The layers whose hidden states are among some signals."""
    return frozenset(layer for _, what in signals if isinstance(what, Hidden) for layer in what.layers)


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The strategy, acceptance rule and settings of one request.

    Requests with different plans may share a pass. The strategy is bound for the rule's ``reads_q`` and ``is_keyed``.
    """

    strategy: Strategy
    verifier: Verifier
    settings: Settings

    @property
    def shows_draws(self) -> bool:
        """Return True if feedback may contain draws.

        Under a rule that isn't keyed by position, a proposer that knew later noise would bias the text.
        """
        return self.verifier.is_keyed or self.settings.temperature == 0.0
