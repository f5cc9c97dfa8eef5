"""The candidates that a head has drafted in a step, as a tree and as a merge's source reads them."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from specdec.heads.base import Noise
from specdec.heads.drafting import DraftedTrees
from specdec.strategies.request import Request
from specdec.tree import ROOT, DraftTree

_BINS = 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98  # of the head's own probability


@dataclass(slots=True)
class Candidates:
    """A request's drafted candidates; parents precede children, and -1 stands for the root.

    Attributes:
        tokens, parents: of each node.
        log_probs: the head's log-probability of the path to each node.
        depth: the maximum number of tokens on a path.
        least: less probable paths aren't continued. Other requests of the batch may have had them fed all the same.
    """

    tokens: list[int]
    parents: list[int]
    log_probs: list[float]
    depth: int = 0
    least: float = -math.inf
    _children: dict[int, list[int]] = field(default_factory=dict)

    @property
    def is_finite(self) -> bool:
        """False if the head's log-probabilities were not finite."""
        return all(map(math.isfinite, self.log_probs))

    def children(self, node: int) -> Sequence[int]:
        """Return the children of a node, the most probable first; none after a path that isn't continued."""
        if node >= 0 and self.log_probs[node] < self.least:
            return ()
        if not self._children:
            for child, parent in enumerate(self.parents):
                self._children.setdefault(parent, []).append(child)
        return self._children.get(node, ())

    def tree(self, root: int, num_nodes: int, stops: frozenset[int]) -> DraftTree:
        """Return the tree of the ``num_nodes`` most probable paths, without those that are less probable than least.

        Args:
            stops: tokens that nothing follows.
        """
        order = sorted(range(len(self.tokens)), key=lambda node: (-self.log_probs[node], node))
        place, tree = {-1: ROOT}, DraftTree(root)
        for node in sorted(order[:num_nodes]):
            above = place.get(self.parents[node])
            if above is None or self.log_probs[node] < self.least or tree.depths[above] >= self.depth:
                continue
            if above == ROOT or tree.tokens[above] not in stops:
                place[node] = tree.add(above, self.tokens[node])
                tree.probs[place[node]] = self.probability(node)
        return tree

    def probability(self, node: int) -> float:
        """Return the head's probability of a node after its parent."""
        parent = self.parents[node]
        return math.exp(self.log_probs[node] - (self.log_probs[parent] if parent >= 0 else 0.0))


def fetched(trees: DraftedTrees) -> list[Candidates]:
    """Return each request's candidates."""
    numbers = trees.tokens.tolist(), trees.parents.tolist(), trees.log_probs.tolist()
    return [Candidates(tokens, parents, log_probs) for tokens, parents, log_probs in zip(*numbers, strict=True)]


class DraftNoise:
    """The acceptance rule's noise at the next positions of each request that has any.

    Added to the head's logits, it makes the head's own draw with the target's noise the most probable candidate
    (Daliri, Musco and Suresh 2024, arXiv 2408.07978).

    Args:
        target_ids: (draft vocab,) the target's id of each draft id.
    """

    def __init__(self, requests: Sequence[Request], target_ids: torch.Tensor) -> None:
        self._requests, self._target_ids = requests, target_ids
        self._is_known = any(request.noise is not None for request in requests)

    def at(self, num_drafted: int) -> Noise | None:
        """Return the noise of the position after the drafted tokens; None if no request has any."""
        if not self._is_known:
            return None
        rows = torch.stack([self._row(request, num_drafted) for request in self._requests])
        scales = [1.0 if request.noise is None else 1.0 / request.temperature for request in self._requests]
        return Noise(torch.tensor(scales, device=rows.device)[:, None, None], rows[:, None])

    def of_next(self, count: int) -> Noise | None:
        """Return the noise of the next positions, for passes that draft them all; None if no request has any."""
        return Noise.joined(map(self.at, range(count)))

    def _row(self, request: Request, num_drafted: int) -> torch.Tensor:
        if request.noise is None:
            return torch.zeros(len(self._target_ids), device=self._target_ids.device)
        noise = request.noise(len(request.tokens) + num_drafted)
        return noise.to(self._target_ids.device, torch.float32)[self._target_ids]


def bin_of(probability: float) -> int:
    """Return the bin of a candidate's probability after its parent."""
    return sum(probability >= edge for edge in _BINS)


def prior(bucket: Hashable) -> float:
    """Return the acceptance rate that a bucket begins with: the middle of its bin."""
    assert isinstance(bucket, tuple), "buckets are (is_sampled, depth, bin of the probability)"
    edges = 0.0, *_BINS, 1.0
    return (edges[bucket[2]] + edges[bucket[2] + 1]) / 2
