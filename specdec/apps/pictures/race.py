"""A race of two strategies on one machine; each is timed as if it ran alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec.apps.comparison import differences
from specdec.decoding.result import Result
from specdec.generator import Generator
from specdec.record import StepRecord


@dataclass(slots=True)
class Lane:
    """One strategy's progress; ``seconds`` count its own passes only."""

    name: str
    generator: Generator
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    num_steps: int = 0
    seconds: float = 0.0
    result: Result | None = None

    def note(self, record: StepRecord) -> None:
        """Add a pass and its time."""
        self.num_steps += record.kind != "chunk"
        self.seconds += record.total_seconds

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of the lane's own passes."""
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """New tokens over forward passes."""
        return len(self.token_ids) / self.num_steps if self.num_steps else 0.0


def race(lanes: Sequence[Lane], prompt: Any, **settings: Any) -> Iterator[Lane]:
    """Decode one prompt in every lane; yield the lane that has just advanced.

    The lane with the fewest seconds takes the next step, so all lanes are at about the same time.
    """
    streams: list[Any] = [lane.generator.stream(prompt, on_step=lane.note, **settings) for lane in lanes]
    try:
        while running := [place for place, lane in enumerate(lanes) if lane.result is None]:
            place = min(running, key=lambda place: lanes[place].seconds)
            lane = lanes[place]
            chunk = next(streams[place])
            lane.token_ids += chunk.token_ids
            lane.text += chunk.text
            lane.result = chunk.result
            yield lane
    finally:
        for stream in streams:
            stream.close()


def first_difference(lanes: Sequence[Lane]) -> int | None:
    """Return the index of the first new token in which two lanes' texts differ; None if they are identical."""
    first, second = lanes
    return differences.first_difference(first.token_ids, second.token_ids)
