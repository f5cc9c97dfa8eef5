"""The file of the contests' verdicts on this machine: only clear ones, which are checked again from time to time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pydantic import Field, model_validator

from specdec.machine.cache_files import Remembered, read, update
from specdec.machine.timing import Clock, Verdict

FILE = "kernels.json"
_MOST = 400  # verdicts, and row multiples, in the file
_FIRST_CHECK = 600.0  # seconds until a verdict is checked; each confirmation makes the next interval longer
_LONGER, _LONGEST = 4, 30 * 86_400.0

RowMultiples = tuple[tuple[tuple[int, int], int], ...]
Entry = TypeVar("Entry")


class _Known(Remembered):
    """A clear verdict on contenders, the time of its last check, and how many checks have confirmed it."""

    names: tuple[str, ...]
    winner: str
    runner_up: str | None
    checked_at: float = Field(ge=0)
    num_confirmed: int = Field(ge=0, default=0)

    @model_validator(mode="after")
    def _names_are_contenders(self) -> Self:
        others = {None, *self.names} - {self.winner}
        if self.winner not in self.names or self.runner_up not in others:
            raise ValueError("winner and runner_up must be two of the names")
        return self

    def is_due(self, now: float) -> bool:
        """Return True if it is time for a check."""
        wait = min(_LONGEST, _FIRST_CHECK * _LONGER ** min(self.num_confirmed, 10))
        return not 0.0 <= now - self.checked_at < wait  # the clock may have been set back


class _RowMultiples(Remembered):
    multiples: RowMultiples

    @model_validator(mode="after")
    def _are_in_range(self) -> Self:
        if any(min(*shape, multiple - 1) < 1 for shape, multiple in self.multiples):
            raise ValueError("shapes are positive, and multiples are above one")
        return self


class _Contents(Remembered):
    """The contents of the file, the latest last."""

    verdicts: dict[str, _Known] = Field(default_factory=dict)
    rows: dict[str, _RowMultiples] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts about one model's layers, in a file. If it can't be written, later processes measure again.

    Attributes:
        key: changes with all that verdicts depend on besides the contenders: layers, machine and versions.
        now: returns the time of day in seconds.
    """

    path: Path
    key: str
    now: Clock = time.time

    def winner(
        self,
        question: str,
        names: tuple[str, ...],
        measure: Callable[[], Verdict],
        check: Callable[[Verdict], bool | None],
    ) -> str:
        """Return the winner of a contest, which is measured unless a clear verdict is cached.

        Args:
            question: the contest's name among those about these layers.
            check: called when a cached verdict is due for a check. If it returns False, the verdict is dropped and
                measured again; if None, the rounds were unclear and the verdict is unchanged.
        """
        key = " ".join((self.key, question, *names))
        known = self._contents().verdicts.get(key)
        if known is not None and known.names == names:
            if known.runner_up is None or not known.is_due(self.now()):
                return known.winner
            holds = check(Verdict(known.winner, known.runner_up))
            if holds is not False:
                num_confirmed = known.num_confirmed + (holds is True)
                self._note(key, known.model_copy(update={"checked_at": self.now(), "num_confirmed": num_confirmed}))
                return known.winner
            self._note(key, None)
        verdict = measure()
        if verdict.is_clear:
            runner_up = verdict.runner_up
            self._note(key, _Known(names=names, winner=verdict.winner, runner_up=runner_up, checked_at=self.now()))
        return verdict.winner

    def row_multiples(self, question: str, probe: Callable[[], RowMultiples]) -> RowMultiples:
        """Return the multiples to which rows are padded; probed once."""
        key = f"{self.key} {question}"
        known = self._contents().rows.get(key)
        if known is None:
            known = _RowMultiples(multiples=probe())
            self._change(lambda held: held.model_copy(update={"rows": _latest({**held.rows, key: known})}))
        return known.multiples

    def _contents(self) -> _Contents:
        return read(self.path, _Contents) or _Contents()

    def _note(self, key: str, known: _Known | None) -> None:
        """Replace or remove a verdict."""

        def change(held: _Contents) -> _Contents:
            others = {name: each for name, each in held.verdicts.items() if name != key}
            return held.model_copy(update={"verdicts": _latest(others | ({} if known is None else {key: known}))})

        self._change(change)

    def _change(self, change: Callable[[_Contents], _Contents]) -> None:
        update(self.path, _Contents, lambda held: change(held or _Contents()))


def _latest(entries: dict[str, Entry]) -> dict[str, Entry]:
    return dict(list(entries.items())[-_MOST:])
