"""Statistics of a request, read off the records of its steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specdec.decoding.phases import PHASES
from specdec.decoding.tally import Tally
from specdec.record import Outcome, StepRecord


@dataclass(slots=True)
class Stats:
    """One sequence's figures.

    ``accepted_lengths`` has the tokens emitted by each step, the bonus token included; the first step's pass is the
    prompt's. ``num_nodes`` counts the nodes fed, the roots included; the prompt counts as one. ``num_fallbacks`` counts
    the steps whose drafts carried no true distributions, so that ``match`` decided in place of a rule that reads them.
    ``tally`` counts what the strategies of a merge named and what came of it. ``seconds`` is by phase; sequences of a
    batch share their steps, so each reports the whole step's time. ``num_reused`` counts the tokens of the prompt that
    a context held.
    """

    accepted_lengths: list[int] = field(default_factory=list)
    num_nodes: int = 0
    num_fallbacks: int = 0
    tally: Tally = field(default_factory=Tally)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    seconds_to_first_token: float = 0.0
    peak_cache_bytes: int = 0
    num_reused: int = 0

    @property
    def steps(self) -> int:
        """Forward passes, the prompt's counted as one."""
        return len(self.accepted_lengths)

    @property
    def num_tokens(self) -> int:
        """New tokens."""
        return sum(self.accepted_lengths)

    @property
    def tokens_per_step(self) -> float:
        """tau: new tokens over forward passes; plain decoding has 1."""
        return self.num_tokens / self.steps if self.steps else 0.0

    @property
    def sources(self) -> dict[str, dict[int, list[int]]]:
        """By strategy of a merge and depth, the number of nodes that it named, and how many of these were accepted."""
        return self.tally.sources

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """By strategy of a merge, for each tenth of predicted chance: nodes judged, their chances' sum, nodes right."""
        return self.tally.calibration

    @property
    def total_seconds(self) -> float:
        """All phases together."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the seconds of all phases."""
        return self.num_tokens / self.total_seconds if self.total_seconds else 0.0

    def note(self, record: StepRecord, outcome: Outcome) -> None:
        """Add a step that the request took part in."""
        for phase, seconds in record.seconds.items():
            self.seconds[phase] += seconds
        self.peak_cache_bytes = max(self.peak_cache_bytes, record.row_bytes)
        self.num_nodes += outcome.num_nodes
        self.num_fallbacks += outcome.has_fallen_back
        if outcome.tree is not None and outcome.tree.named_by:
            self.tally.note(outcome.tree, outcome.path, outcome.tokens)
        if outcome.tokens:
            self.accepted_lengths.append(len(outcome.tokens))


class Clock:
    """The seconds of a step, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of what is done within."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
