"""Windows on trial: nodes that are fed for what they teach, as long as steps with them are the faster ones.

A lookahead window brings no token in the step that feeds it, and nobody can tell which later token it brought. So steps
with and without are compared as they go: by stretches of some steps, mostly of the better kind, now and then of the
other, each kind by its tokens over its costs of late.
"""

from dataclasses import dataclass, field

_STRETCH = 24  # steps: what a window taught is of use for a while
_TRIAL = 6  # every so many stretches is of the kind that seems worse
_CLEARLY, _RARELY = 0.9, 24  # where it is that much worse, every so many
_MEMORY = 0.997  # weight of what was seen, with each step since


@dataclass(slots=True)
class Kind:
    """Tokens and costs of the steps of one kind, the latest counting most."""

    tokens: float = 0.0
    cost: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens for the cost of a plain step; as good as any where nothing was seen."""
        return self.tokens / self.cost if self.cost else float("inf")


@dataclass(slots=True)
class Windows:
    """The choice between steps with a window and steps without, for one number of rows."""

    _kinds: tuple[Kind, Kind] = field(default_factory=lambda: (Kind(), Kind()))
    _num_steps: int = 0
    _is_fed: bool = True

    def is_due(self) -> bool:
        """Return True if the next step has its window."""
        if self._num_steps % _STRETCH == 0:
            without, fed = (kind.speed for kind in self._kinds)
            every = _RARELY if min(without, fed) < _CLEARLY * max(without, fed) else _TRIAL
            is_trial = (self._num_steps // _STRETCH) % every == every - 1
            self._is_fed = (fed >= without) != is_trial
        return self._is_fed

    def note(self, is_fed: bool, tokens: float, cost: float) -> None:
        """Learn what a step brought for each row, and cost."""
        self._num_steps += 1
        for kind in self._kinds:
            kind.tokens, kind.cost = _MEMORY * kind.tokens, _MEMORY * kind.cost
        kind = self._kinds[is_fed]
        kind.tokens, kind.cost = kind.tokens + tokens, kind.cost + cost
