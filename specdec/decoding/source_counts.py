"""Counts of a merge by source: proposed and accepted nodes, and the outcomes of predicted probabilities."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.tree import DraftTree

NUM_BINS = 10  # of predicted probabilities

Names = tuple[str, ...]


@dataclass(slots=True)
class SourceCounts:
    """Counts of a merge's nodes by the strategies that proposed them.

    Attributes:
        proposed: by strategies, depth and whether the node was accepted: the number of nodes.
        bins: by strategies and bin of predicted probability, for nodes with an accepted parent, whose outcome is known:
            the number of nodes, the sum of their probabilities, and the number of right nodes.
    """

    proposed: defaultdict[tuple[Names, int, bool], int] = field(default_factory=lambda: defaultdict(int))
    bins: defaultdict[tuple[Names, int], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0, 0]))

    def add(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Add a draft with its accepted path, root first, and the committed tokens."""
        accepted, followed = frozenset(path), dict(zip(path, tokens, strict=False))
        parents, depths, probs, ids, proposed = tree.parents, tree.depths, tree.probs, tree.tokens, self.proposed
        for node, names in tree.proposed_by.items():
            proposed[names, depths[node], node in accepted] += 1
            token = followed.get(parents[node])
            if token is not None and node in probs:
                cell = self.bins[names, min(int(NUM_BINS * probs[node]), NUM_BINS - 1)]
                cell[0] += 1
                cell[1] += probs[node]
                cell[2] += token == ids[node]

    @property
    def by_depth(self) -> dict[str, dict[int, list[int]]]:
        """By strategy and depth: the numbers of proposed and accepted nodes."""
        found: dict[str, dict[int, list[int]]] = {}
        for (names, depth, is_accepted), count in sorted(self.proposed.items(), key=lambda item: item[0][1]):
            for name in names:
                counts = found.setdefault(name, {}).setdefault(depth, [0, 0])
                counts[0] += count
                counts[1] += count * is_accepted
        return found

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """By strategy and bin of predicted probability: number of nodes, sum of probabilities, number of right nodes.

        A node's probability is conditional on its parent; only nodes with an accepted parent count.
        """
        found: dict[str, list[list[float]]] = {}
        for (names, place), cell in self.bins.items():
            for name in names:
                sums = found.setdefault(name, [[0, 0.0, 0] for _ in range(NUM_BINS)])
                sums[place] = [one + other for one, other in zip(sums[place], cell, strict=True)]
        return found
