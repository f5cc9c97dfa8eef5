"""A head's passes by torch."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.layers import Product
from specdec.heads.pair_head import PairHead, fused
from specdec.models.fused_attention import without_cudnn
from specdec.models.weights.onednn import OneDNNKernel


class TorchRunner(HeadRunner):
    """Runs a head by torch, on the device of its weights.

    On a CPU, its matrices are packed once in the blocks that oneDNN reads: products of few rows take half the time.
    """

    head: PairHead

    def __init__(self, head: PairHead, num_tokens: int | None) -> None:
        super().__init__(head, num_tokens)
        self._head = fused(head, product_of(head.fc.weight))
        self._target_ids = head.target_ids.cpu().numpy()

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        head, device = self._head, cache.keys.device
        ids = torch.from_numpy(np.stack((pairs.tokens, pairs.positions))).to(device)
        features = head.fuse(pairs.features) if pairs.fuses else pairs.features
        inputs = head.enter(ids[0], features, ids[1])
        write_slots(cache, inputs.key, inputs.value, pairs.starts)
        residual, query = inputs.residual, inputs.query
        if pairs.last is not None:
            rows, last = torch.arange(len(pairs.last), device=device), torch.from_numpy(pairs.last).to(device)
            residual, query = residual[rows, last][:, None], query[rows, :, last][:, :, None]
        out = head.leave(residual, attention(query, cache, pairs, head.config.sliding_window))
        if self.returns_all:
            log_probs = noisy(head.logits(out), noise).log_softmax(-1).cpu().numpy()
            return Continuations(np.broadcast_to(self._target_ids, log_probs.shape), log_probs, head.next_features(out))
        draft_ids, log_probs = most_probable(head.logits(out), self.num_tokens, noise)
        return Continuations(self._target_ids[draft_ids], log_probs, head.next_features(out))


def most_probable(logits: torch.Tensor, num_tokens: int, noise: Noise | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and log-probabilities, (requests, m, num_tokens) each, of logits (requests, m, draft vocab)."""
    log_probs, draft_ids = noisy(logits, noise).log_softmax(-1).topk(num_tokens)
    if logits.is_cpu:
        return draft_ids.numpy(), log_probs.numpy()
    # In one transfer; a float32 represents any token id.
    ids, scores = torch.stack((draft_ids.float(), log_probs)).cpu().numpy()
    return ids.astype(np.int64), scores


def noisy(logits: torch.Tensor, noise: Noise | None) -> torch.Tensor:
    """Return logits in float32, changed by the noise."""
    logits = logits.float()
    return logits if noise is None else logits * noise.scale + noise.noise


def product_of(like: torch.Tensor) -> Callable[[torch.Tensor], Product]:
    """Return a function that prepares the product with a matrix of the dtype and device of ``like``."""
    kernel = OneDNNKernel()
    if kernel.why_not(like.dtype, like.device):
        return lambda weight: lambda rows: linear(rows, weight)

    def prepare(weight: torch.Tensor) -> Product:
        packed = kernel.pack(weight)
        return lambda rows: kernel.multiply(rows, packed, None)

    return prepare


def write_slots(cache: KeyValues, keys: torch.Tensor, values: torch.Tensor, starts: np.ndarray) -> None:
    """Write keys and values, (requests, key-value heads, n, head_dim), to the slots from ``starts`` on."""
    count = keys.shape[2]
    if len(starts) == 1:
        slots = slice(int(starts[0]), int(starts[0]) + count)
        cache.keys[:, :, slots], cache.values[:, :, slots] = keys, values
        return
    index = torch.from_numpy(starts[:, None] + np.arange(count)).to(keys.device)
    rows = torch.arange(len(starts), device=keys.device)[:, None]
    cache.keys[rows, :, index], cache.values[rows, :, index] = keys.transpose(1, 2), values.transpose(1, 2)


def attention(query: torch.Tensor, cache: KeyValues, pairs: Pairs, window: int | None) -> torch.Tensor:
    """Attention of queries, (requests, heads, m, head_dim), to the slots that their pairs see; window as in configs."""
    requests, _, count, _ = query.shape
    stop, first, visible = int(pairs.starts.max()) + pairs.tokens.shape[1], 0, None
    if requests * count == 1 and pairs.visible is None:
        stop = int(pairs.starts[0]) + (0 if pairs.last is None else int(pairs.last[0])) + 1
        first = 0 if window is None else max(0, stop - window)
    else:
        visible = torch.from_numpy(visible_slots(pairs, stop, window)).to(query.device)
    return masked_attention(query, KeyValues(*(each[:, :, first:stop] for each in cache)), visible)


def masked_attention(query: torch.Tensor, cache: KeyValues, visible: torch.Tensor | None) -> torch.Tensor:
    """Attention of queries, (requests, heads, m, head_dim); the heads of a group are rows of its key-value head.

    Args:
        query: the queries.
        cache: all slots that are read.
        visible: (requests, m, slots), True for slots that a query attends to; None for all.
    """
    (requests, heads, count, size), groups = query.shape, cache.keys.shape[1]
    mask = None
    if visible is not None:
        mask = visible[:, None, None].expand(-1, 1, heads // groups, -1, -1).flatten(2, 3)
    folded = query.reshape(requests, groups, heads // groups * count, size)
    with without_cudnn(query.device):
        out = scaled_dot_product_attention(folded, cache.keys, cache.values, mask)
    return out.reshape(requests, heads, count, size)


def visible_slots(pairs: Pairs, stop: int, window: int | None = None) -> np.ndarray:
    """Return the slots below ``stop`` that each wanted pair attends to, (requests, m, stop); window as in configs."""
    slots, wanted = np.arange(stop), pairs.wanted
    visible: np.ndarray
    if pairs.visible is None:
        visible = slots <= (pairs.starts[:, None] + wanted)[:, :, None]
    else:
        visible = pairs.visible[:, :, :stop]
    if window is None:
        return visible
    # A draft's slots, of which several have one position, are no lower than their positions: they are in the window.
    within: np.ndarray = visible & (slots > np.take_along_axis(pairs.positions, wanted, 1)[..., None] - window)
    return within
