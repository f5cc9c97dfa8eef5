"""Drafting with an EAGLE-3 head: caches of target-fed pairs, and EAGLE-2's dynamic trees (arXiv 2406.16858).

A cache holds the keys and values of pairs that were fed with the target's states, and of nothing else. What a tree
appends is dropped after the draft, so a rejected branch needs no rollback. Requests of any lengths run in one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from specdec.heads.eagle3 import Eagle3Head
from specdec.models.fused_attention import without_cudnn


class PairCache:
    """The head's keys and values of one request, for pairs fed with the target's states.

    Attributes:
        keys: (pairs, key-value heads, head_dim), rotated.
        values: (pairs, key-value heads, head_dim).
    """

    def __init__(self, head: Eagle3Head) -> None:
        shape = 0, head.config.num_key_value_heads, head.config.head_dim
        self.keys = torch.empty(shape, dtype=head.fc.weight.dtype, device=head.fc.weight.device)
        self.values = self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Append the keys and values, (pairs, key-value heads, head_dim), of further pairs."""
        self.keys, self.values = torch.cat((self.keys, keys)), torch.cat((self.values, values))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` pairs."""
        self.keys, self.values = self.keys[:length], self.values[:length]


# Scores over the draft vocabulary, from logits (requests, n, draft vocab) after a path of a number of draft tokens.
Score = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DraftedTrees:
    """Draft trees of several requests, all with the same number of nodes; parents precede their children.

    Attributes:
        tokens: (requests, nodes) target ids.
        parents: (requests, nodes) indices of nodes; -1 for children of the root.
        log_probs: (requests, nodes) the head's log-probability of the path to each node.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    log_probs: torch.Tensor


def extend(
    head: Eagle3Head, caches: Sequence[PairCache], states: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Append pairs to the caches; return the layer's output of each request's last pair, (requests, hidden).

    Args:
        head: the head.
        caches: one per request.
        states: (n, num_states * target hidden) per request, the target's states at positions i of the new pairs.
        tokens: (n,) per request, the tokens at positions i + 1.
    """
    counts = [len(each) for each in tokens]
    befores = [len(cache) for cache in caches]
    inputs_states = pad_sequence(list(states), batch_first=True)
    width, longest, device = inputs_states.shape[1], max(befores), inputs_states.device
    before = torch.tensor(befores, device=device)[:, None]
    arange = torch.arange(max(width, longest), device=device)
    inputs = head.enter(pad_sequence(list(tokens), batch_first=True), head.fuse(inputs_states), before + arange[:width])
    keys, values = _stacked(caches, longest)
    cached = (arange[:longest] < before)[:, None].expand(-1, width, -1)
    new = (arange[:width] <= arange[:width, None]).expand(len(caches), -1, -1)
    attended = _attention(
        inputs.query,
        torch.cat((keys, inputs.key), 2),
        torch.cat((values, inputs.value), 2),
        torch.cat((cached, new), 2),
    )
    out = head.leave(inputs.residual, attended)
    for row, (cache, count) in enumerate(zip(caches, counts, strict=True)):
        cache.append(inputs.key[row, :, :count].transpose(0, 1), inputs.value[row, :, :count].transpose(0, 1))
    last = torch.tensor(counts, device=device) - 1
    return out[torch.arange(len(caches), device=device), last]


def append(head: Eagle3Head, cache: PairCache, states: torch.Tensor, tokens: torch.Tensor) -> None:
    """Append pairs to a cache without computing the layer's output, for pairs that nothing is drafted after.

    Args:
        head: the head.
        cache: of one request.
        states: (n, num_states * target hidden), the target's states at positions i of the new pairs.
        tokens: (n,), the tokens at positions i + 1.
    """
    positions = torch.arange(len(cache), len(cache) + len(tokens), device=states.device)
    inputs = head.enter(tokens[None], head.fuse(states[None]), positions[None])
    cache.append(inputs.key[0].transpose(0, 1), inputs.value[0].transpose(0, 1))


def grow(
    head: Eagle3Head, caches: Sequence[PairCache], last: torch.Tensor, width: int, depth: int, num_nodes: int
) -> DraftedTrees:
    """Grow a tree per request from the outputs of ``extend``; the caches are left as they are.

    The first level has the ``width`` most probable tokens. Each of ``depth`` further levels feeds the ``width`` best
    nodes of the level before, and adds the ``width`` most probable children of each. The ``num_nodes`` nodes whose
    paths are most probable are returned, in the order of their creation.

    Args:
        head: the head.
        caches: one per request.
        last: (requests, hidden), from ``extend``.
        width: nodes fed per level, and children of each.
        depth: levels after the first.
        num_nodes: size of each tree, at most ``width + depth * width ** 2``.
    """
    growth = TreeGrowth(head, caches, last, width)
    for _ in range(depth):
        growth.feed()
    return growth.best(num_nodes)


class TreeGrowth:
    """Draft trees of several requests, which grow by a level with each ``feed``; the caches are left as they are.

    Args:
        head: the head.
        caches: one per request.
        last: (requests, hidden), from ``extend``.
        width: nodes fed per level.
        num_children: children of each fed node, at least ``width``; ``width`` if not given.
        score: applied to the logits before candidates are chosen; by default the logits themselves.
    """

    def __init__(
        self,
        head: Eagle3Head,
        caches: Sequence[PairCache],
        last: torch.Tensor,
        width: int,
        num_children: int | None = None,
        score: Score = lambda logits, _: logits,
    ) -> None:
        self.head, self.width, self._score, self._num_fed = head, width, score, 0
        self.num_children = width if num_children is None else num_children
        self.lengths = torch.tensor([len(cache) for cache in caches], device=last.device)
        longest = max(len(cache) for cache in caches)
        self.keys, self.values = _stacked(caches, longest)
        visible = torch.arange(longest, device=last.device) < self.lengths[:, None]
        # What each node to be fed may attend to: cached pairs, then the nodes fed so far.
        self.visible = visible[:, None].expand(-1, width, -1)
        self.log_probs, ids = self._topk(last[:, None])
        self.log_probs = self.log_probs.flatten(1)
        self.tokens = head.target_ids[ids.flatten(1)]
        self.parents = torch.full_like(self.tokens, -1)
        self.features = head.next_features(last)[:, None].expand(-1, width, -1)
        self.fed = torch.arange(width, device=last.device).expand(len(last), -1)  # candidates fed next

    @property
    def next_log_probs(self) -> torch.Tensor:
        """(requests,) the log-probability of the best path that the next ``feed`` continues."""
        return self.log_probs.gather(1, self.fed).amax(1)

    def _topk(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self._score(self.head.logits(out).float(), self._num_fed)
        values, ids = scores.log_softmax(-1).topk(self.num_children)
        return values, ids

    def feed(self) -> None:
        """Feed the best candidates of the last level; append their children and choose the best of these."""
        rows, width = self.fed.shape
        positions = (self.lengths + self._num_fed)[:, None].expand(-1, width)
        inputs = self.head.enter(self.tokens.gather(1, self.fed), self.features, positions)
        self.keys = torch.cat((self.keys, inputs.key), 2)
        self.values = torch.cat((self.values, inputs.value), 2)
        itself = torch.eye(width, dtype=torch.bool, device=self.fed.device).expand(rows, -1, -1)
        visible = torch.cat((self.visible, itself), 2)
        out = self.head.leave(inputs.residual, _attention(inputs.query, self.keys, self.values, visible))
        self._num_fed += 1
        values, ids = self._topk(out)
        children = values + self.log_probs.gather(1, self.fed)[..., None]
        first = self.tokens.shape[1]
        self.tokens = torch.cat((self.tokens, self.head.target_ids[ids.flatten(1)]), 1)
        self.log_probs = torch.cat((self.log_probs, children.flatten(1)), 1)
        self.parents = torch.cat((self.parents, self.fed.repeat_interleave(self.num_children, 1)), 1)
        best = children.flatten(1).topk(width).indices
        self.fed = first + best
        parents = best // self.num_children
        self.features = self.head.next_features(_rows_of(out, parents))
        self.visible = _rows_of(visible, parents)

    def best(self, num_nodes: int) -> DraftedTrees:
        """Return the candidates with the most probable paths, all if there are fewer."""
        num_nodes = min(num_nodes, self.tokens.shape[1])
        # A stable sort: of equal paths the older is kept, so no child without its parent.
        kept = self.log_probs.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes].sort(1).values
        place = torch.full_like(self.tokens, -1).scatter(
            1, kept, torch.arange(num_nodes, device=kept.device).expand_as(kept)
        )
        parents = self.parents.gather(1, kept)
        parents = torch.where(parents < 0, -1, place.gather(1, parents.clamp_min(0)))
        return DraftedTrees(self.tokens.gather(1, kept), parents, self.log_probs.gather(1, kept))


def _rows_of(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Select rows (requests, n, …) by indices (requests, m)."""
    return tensor.gather(1, indices[..., None].expand(-1, -1, tensor.shape[-1]))


def _stacked(caches: Sequence[PairCache], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack the caches' keys and values, (requests, key-value heads, longest, head_dim), with zeros after each."""
    if len(caches) == 1:
        return caches[0].keys.transpose(0, 1)[None], caches[0].values.transpose(0, 1)[None]
    keys, values = (
        pad_sequence([getattr(cache, name) for cache in caches], batch_first=True).transpose(1, 2)
        for name in ("keys", "values")
    )
    return keys, values


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Attention of (requests, heads, n, head_dim) under a mask (requests, n, keys), True where a key is visible."""
    with without_cudnn(query.device):
        return scaled_dot_product_attention(query, key, value, visible[:, None], enable_gqa=True)
