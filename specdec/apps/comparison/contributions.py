"""The contribution of each source to a merge: nodes proposed, nodes accepted, and predicted against observed rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.apps.comparison.runs import Run
from specdec.decoding.stats import NUM_BINS


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Nodes whose predicted acceptance probability lies in one tenth: the mean prediction, and the rate observed."""

    num_nodes: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Contribution:
    """One source's contribution to a merge.

    ``by_depth`` maps each depth to nodes per step that the source proposed, alone or with others, and to those
    accepted. ``bins`` has the calibration bins that contain nodes.
    """

    source: str
    by_depth: dict[int, tuple[float, float]]
    bins: tuple[CalibrationBin, ...]

    @property
    def nodes_per_step(self) -> float:
        """Nodes proposed."""
        return sum(proposed for proposed, _ in self.by_depth.values())

    @property
    def tokens_per_step(self) -> float:
        """Nodes accepted; a node proposed by several sources counts for each."""
        return sum(accepted for _, accepted in self.by_depth.values())

    @property
    def acceptance_rate(self) -> float:
        """Nodes accepted over nodes proposed."""
        return self.tokens_per_step / self.nodes_per_step if self.nodes_per_step else 0.0

    def to_json(self) -> dict[str, Any]:
        """All figures; bins as ``[nodes, predicted, observed]``."""
        return {
            "nodes_per_step": self.nodes_per_step,
            "tokens_per_step": self.tokens_per_step,
            "by_depth": self.by_depth,
            "calibration": [[own.num_nodes, own.predicted, own.observed] for own in self.bins],
        }


def contributions(runs: Sequence[Run]) -> list[Contribution]:
    """Each source's contribution to one strategy's runs, most tokens first; empty for a strategy without sources."""
    num_steps = sum(len(run.accepted_lengths) for run in runs)
    counts: dict[str, dict[int, tuple[int, int]]] = {}
    sums: dict[str, list[tuple[int, float, int]]] = {}
    for run in runs:
        for source, by_depth in run.sources.items():
            own = counts.setdefault(source, {})
            for depth, (proposed, accepted) in by_depth.items():
                before = own.get(depth, (0, 0))
                own[depth] = before[0] + proposed, before[1] + accepted
        for source, bins in run.calibration.items():
            known = sums.setdefault(source, [(0, 0.0, 0)] * NUM_BINS)
            sums[source] = [(a + d, b + e, c + f) for (a, b, c), (d, e, f) in zip(known, bins, strict=True)]
    found = [
        Contribution(
            source,
            {depth: (every / num_steps, right / num_steps) for depth, (every, right) in sorted(by_depth.items())},
            tuple(CalibrationBin(n, probs / n, right / n) for n, probs, right in sums.get(source, ()) if n),
        )
        for source, by_depth in counts.items()
    ]
    return sorted(found, key=lambda own: own.tokens_per_step, reverse=True)
