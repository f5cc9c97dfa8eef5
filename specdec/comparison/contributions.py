"""The merits of a merge's strategies in a comparison: who named what, who was right, and whose chances came true."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec.decoding.tally import NUM_BINS

if TYPE_CHECKING:
    from specdec.comparison.results import Comparison


@dataclass(frozen=True, slots=True)
class Bin:
    """The nodes whose predicted chance lies in one tenth, with the means of what was predicted and what came of it."""

    num_nodes: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Earning:
    """One source's part in a merge.

    ``by_depth`` has, for each depth, the nodes that it named per step, alone or with others, and those of them that
    were accepted: tokens. ``bins`` are those of its chances that hold any node.
    """

    source: str
    by_depth: dict[int, tuple[float, float]]
    bins: tuple[Bin, ...]

    @property
    def nodes_per_step(self) -> float:
        """Nodes that it named."""
        return sum(named for named, _ in self.by_depth.values())

    @property
    def tokens_per_step(self) -> float:
        """Tokens that it earned; one that several named counts for each."""
        return sum(right for _, right in self.by_depth.values())

    @property
    def share_right(self) -> float:
        """Accepted nodes over named ones."""
        return self.tokens_per_step / self.nodes_per_step if self.nodes_per_step else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON knows it; bins as ``[nodes, predicted, observed]``."""
        return {
            "nodes_per_step": self.nodes_per_step,
            "tokens_per_step": self.tokens_per_step,
            "by_depth": self.by_depth,
            "calibration": [[own.num_nodes, own.predicted, own.observed] for own in self.bins],
        }


def earnings(comparison: "Comparison", strategy: str) -> list[Earning]:
    """Each source's part in a strategy's runs, who earned most first; none where it is no merge."""
    runs = comparison.runs_of(strategy)
    num_steps = sum(len(run.accepted_lengths) for run in runs)
    counts: dict[str, dict[int, tuple[int, int]]] = {}
    sums: dict[str, list[tuple[int, float, int]]] = {}
    for run in runs:
        for source, by_depth in run.sources.items():
            own = counts.setdefault(source, {})
            for depth, (named, right) in by_depth.items():
                before = own.get(depth, (0, 0))
                own[depth] = before[0] + named, before[1] + right
        for source, bins in run.calibration.items():
            known = sums.setdefault(source, [(0, 0.0, 0)] * NUM_BINS)
            sums[source] = [(a + d, b + e, c + f) for (a, b, c), (d, e, f) in zip(known, bins, strict=True)]
    found = [
        Earning(
            source,
            {depth: (named / num_steps, right / num_steps) for depth, (named, right) in sorted(by_depth.items())},
            tuple(Bin(n, chances / n, right / n) for n, chances, right in sums.get(source, ()) if n),
        )
        for source, by_depth in counts.items()
    ]
    return sorted(found, key=lambda own: own.tokens_per_step, reverse=True)
