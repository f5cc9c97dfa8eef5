"""The text and the states of a row of a ``StatefulCache``, and the passes that read its next tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.backends.placement import RowTokens
from specdec.backends.states.layer_states import Snapshot

# The first of the last three is at least 32 tokens before the last, so it is within the whole blocks of a prefix cache.
MOST_CHECKPOINTS, _SPACING = 3, 32


@dataclass(slots=True)
class RowStates:
    """One row's text and states.

    Attributes:
        tokens: the committed ones.
        fed: the tokens of the last pass after the committed ones.
        checkpoints: the states that are kept, by ascending length; the first is that of the empty text.
        new: the states that the last pass computed, uncommitted.
        is_reading: True until a root has been committed since the row was opened or rolled back.
        num_prompt: the tokens up to the prompt's last one, as far as known.
        has_draft: True if the last pass had draft tokens.
        expects_rejection: False if the last draft was accepted as a whole.
    """

    tokens: list[int] = field(default_factory=list)
    fed: Sequence[int] = ()
    checkpoints: list[Snapshot] = field(default_factory=lambda: [Snapshot(0, 0, ())])
    new: list[Snapshot] = field(default_factory=list)
    is_reading: bool = True
    num_prompt: int = 0
    has_draft: bool = False
    expects_rejection: bool = True

    def add(self, checkpoint: Snapshot) -> None:
        """Add a checkpoint. If it is within ``_SPACING`` tokens of the last but one, it replaces the last."""
        kept = self.checkpoints
        if len(kept) > 2 and checkpoint.length - kept[-2].length < _SPACING:
            kept.pop()
        kept.append(checkpoint)
        del kept[1:-MOST_CHECKPOINTS]


@dataclass(slots=True)
class Reading:
    """The passes over a row's chain that are left.

    Attributes:
        before: the states that the next pass starts from.
        fed: the tokens after these, the chain's last.
        stops: where each pass stops, ascending.
        certain: the length up to the chain's root.
        num_prompt: as of the row.
    """

    row: int
    before: Snapshot
    fed: Sequence[int]
    stops: list[int]
    certain: int
    num_prompt: int

    @property
    def num_next(self) -> int:
        """The tokens of the next pass."""
        return self.stops[0] - self.before.length

    @property
    def is_prompt(self) -> bool:
        """True if the next pass reads tokens of the prompt alone."""
        return self.stops[0] <= self.num_prompt

    def next_part(self) -> RowTokens:
        """Return the tokens of the next pass."""
        return RowTokens(self.row, self.before.length, self.fed[: self.num_next])

    def advance(self, after: Snapshot) -> None:
        """Continue from the states after the next pass."""
        stop = self.stops.pop(0)
        if self.stops:  # the states are copied, with no more inputs than the next pass reads
            self.fed, self.before = self.fed[stop - self.before.length :], after.at(stop) or self.before
