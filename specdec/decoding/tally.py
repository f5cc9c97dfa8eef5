"""The merits of each strategy of a merge: what it named and what came of it, and whether its chances came true."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.tree import DraftTree

NUM_BINS = 10  # of chances, each a tenth wide

Names = tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """Nodes of a merge's drafts, counted by who named them; each strategy's sums are made when asked for.

    ``named``: by names, depth and whether it was accepted, the number of nodes. ``judged``: by names and tenth of the
    chance, of the nodes below accepted ones, whose outcome is therefore known: their number, the sum of their chances,
    and how many were right.
    """

    named: defaultdict[tuple[Names, int, bool], int] = field(default_factory=lambda: defaultdict(int))
    judged: defaultdict[tuple[Names, int], list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0.0, 0])
    )

    def note(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Add a draft, its accepted path, root first, and the committed tokens."""
        accepted, followed = frozenset(path), dict(zip(path, tokens, strict=False))
        parents, depths, chances, ids, named = tree.parents, tree.depths, tree.chances, tree.tokens, self.named
        for node, names in tree.named_by.items():
            named[names, depths[node], node in accepted] += 1
            token = followed.get(parents[node])
            if token is not None and node in chances:
                chance = chances[node]
                cell = self.judged[names, min(int(NUM_BINS * chance), NUM_BINS - 1)]
                cell[0] += 1
                cell[1] += chance
                cell[2] += token == ids[node]

    @property
    def sources(self) -> dict[str, dict[int, list[int]]]:
        """By strategy and depth, the nodes that it named, alone or with others, and how many were accepted."""
        found: dict[str, dict[int, list[int]]] = {}
        for (names, depth, is_accepted), count in sorted(self.named.items(), key=lambda item: item[0][1]):
            for name in names:
                counts = found.setdefault(name, {}).setdefault(depth, [0, 0])
                counts[0] += count
                counts[1] += count * is_accepted
        return found

    @property
    def calibration(self) -> dict[str, list[list[float]]]:
        """By strategy, for each tenth of the chance that its nodes were given: number, sum of chances, number right.

        The chance is that of the token, were its parent right; only nodes below accepted ones count.
        """
        found: dict[str, list[list[float]]] = {}
        for (names, place), cell in self.judged.items():
            for name in names:
                bins = found.setdefault(name, [[0, 0.0, 0] for _ in range(NUM_BINS)])
                bins[place] = [one + other for one, other in zip(bins[place], cell, strict=True)]
        return found
