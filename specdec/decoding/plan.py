"""The plan of a request: what is its own, and doesn't change while it is decoded."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from specdec.settings import Settings
from specdec.strategies.base import Engine, Hidden, Nodes, Signal, TopLogits
from specdec.target import Target
from specdec.verifiers.base import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """A proposer bound to the target: its name, its engine, and the signals that it wants.

    Attributes:
        targets: those that it has opened, in that order: it may open others later.
        about_trees, about_prompts: the signals of either kind.
        layers: those whose hidden states are wanted of trees.
        num_top: the most ``TopLogits`` that are wanted of them.
    """

    name: str
    engine: Engine
    wants: frozenset[Signal]
    targets: Sequence[Target] = ()
    about_trees: tuple[Signal, ...] = field(init=False)
    about_prompts: tuple[Signal, ...] = field(init=False)
    layers: frozenset[int] = field(init=False)
    num_top: int = field(init=False)

    def __post_init__(self) -> None:
        of_prompts = tuple(signal for signal in self.wants if signal[0] is Nodes.PROMPT)
        object.__setattr__(self, "about_prompts", of_prompts)
        object.__setattr__(self, "about_trees", tuple(self.wants.difference(of_prompts)))
        object.__setattr__(self, "layers", layers_of(self.about_trees))
        top = [what.k for _, what in self.about_trees if isinstance(what, TopLogits)]
        object.__setattr__(self, "num_top", max(top, default=0))

    def close(self) -> None:
        """Release the engine, and then the models that it drove."""
        with ExitStack() as closing:
            for target in self.targets:
                closing.callback(target.close)
            closing.callback(self.engine.close)


def layers_of(signals: Iterable[Signal]) -> frozenset[int]:
    """The layers whose hidden states are declared."""
    return frozenset(layer for _, what in signals if isinstance(what, Hidden) for layer in what.layers)


@dataclass(frozen=True, slots=True)
class Plan:
    """The strategy, acceptance rule and settings of one request; the scheduler mixes requests of any plans.

    The rule may be another than the generator's only if it agrees with that in ``reads_q`` and ``is_keyed``: a strategy
    was bound to a host that told it both.
    """

    strategy: Strategy
    verifier: Verifier
    settings: Settings

    @property
    def shows_draws(self) -> bool:
        """Return True if feedback may reveal draws.

        Under rules not keyed by position, a proposer that knew later noise would bias the text.
        """
        return self.verifier.is_keyed or self.settings.temperature == 0.0
