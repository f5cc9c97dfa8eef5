"""The plan of a request: what is its own, and doesn't change while it is decoded."""

from dataclasses import dataclass

from specdec.settings import Settings
from specdec.strategies.base import Engine, Signal
from specdec.verifiers.base import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """A proposer bound to the target: its name, its engine, and the signals that it wants."""

    name: str
    engine: Engine
    wants: frozenset[Signal]


@dataclass(frozen=True, slots=True)
class Plan:
    """The strategy, acceptance rule and settings of one request; the scheduler mixes requests of any plans."""

    strategy: Strategy
    verifier: Verifier
    settings: Settings

    @property
    def shows_draws(self) -> bool:
        """True if a proposer may know the noise of later positions: rules that aren't keyed by it would be biased."""
        return self.verifier.is_keyed or self.settings.temperature == 0.0
