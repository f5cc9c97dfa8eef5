"""Top-k of many logits, by blocks."""

from math import isfinite

import numpy as np
import torch

Top = tuple[tuple[int, ...], tuple[float, ...]]  # tokens, and their probabilities or logits, the largest first

_BLOCK, _LEAST_BLOCK = 256, 32  # logits of a block


def topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The top-k values along the last dimension, largest first, and their indices; for k = 1, the lowest of equals.

    A maximum over blocks is vectorised on every device; a search for an index isn't on a CPU. The top-k values lie in
    the k blocks with the largest maxima, so only these are searched.
    """
    size = values.shape[-1]
    k, block = min(k, size), min(_BLOCK, size & -size)
    if values.is_cpu and values.dtype == torch.float32 and size >= _BLOCK >= k:
        return _topk_by_numpy(values, k)
    if block < _LEAST_BLOCK or size // block < k:
        return values.max(-1, keepdim=True) if k == 1 else values.topk(k)
    blocks = values.reshape(*values.shape[:-1], -1, block)
    maxima = blocks.amax(-1)
    chosen = maxima.max(-1, keepdim=True).indices if k == 1 else maxima.topk(k).indices
    searched = blocks.gather(-2, chosen[..., None].expand(*chosen.shape, block)).flatten(-2)
    found, within = searched.max(-1, keepdim=True) if k == 1 else searched.topk(k)
    return found, chosen.gather(-1, within // block) * block + within % block


def top_ids(logits: torch.Tensor) -> list[list[int]]:
    """The id of the largest of logits on the host, ``(rows, columns, vocab)``, the lowest of equals.

    It is ``~id``, which is negative, if the logit isn't finite. By numpy alone, since a pass leaves nothing of torch in
    the processor's caches: an operation of its takes ten times as long then.
    """
    if logits.dtype != torch.float32:
        largest, ids = topk(logits, 1)
        pairs = zip(largest[..., 0].tolist(), ids[..., 0].tolist(), strict=True)
        return [[id_ if isfinite(logit) else ~id_ for logit, id_ in zip(*row, strict=True)] for row in pairs]
    numbers: np.ndarray = logits.detach().numpy()
    return [
        [id_ if isfinite(column[id_]) else ~id_ for column, id_ in zip(row, row.argmax(-1).tolist(), strict=True)]
        for row in numbers
    ]


def top_two(values: torch.Tensor) -> torch.Tensor:
    """The two largest of at least two numbers ``(vocab,)``, the largest first; none of them is NaN."""
    if not values.is_cpu or values.dtype != torch.float32:
        return topk(values, 2)[0]
    numbers: np.ndarray = values.detach().numpy()
    best = int(numbers.argmax())
    rest = [part.max() for part in (numbers[:best], numbers[best + 1 :]) if part.size]
    return torch.from_numpy(np.array((numbers[best], max(rest))))


def _topk_by_numpy(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same on one thread: waking torch's threads takes as long, and slows an engine with threads of its own."""
    numbers: np.ndarray = values.detach().numpy()
    rows = numbers.reshape(-1, numbers.shape[-1])
    if k == 1:
        best = rows.argmax(-1)
        found, shape = rows[np.arange(len(rows)), best], (*numbers.shape[:-1], 1)
        return torch.from_numpy(found.reshape(shape)), torch.from_numpy(best.reshape(shape))
    whole = rows[:, : rows.shape[1] // _BLOCK * _BLOCK].reshape(len(rows), -1, _BLOCK)
    maxima = whole.max(1)
    if not np.isfinite(maxima).all():
        return values.topk(k)
    above = [np.flatnonzero(row >= least) for row, least in zip(rows, np.partition(maxima, -k)[:, -k], strict=True)]
    ranked = [few[np.argsort(-row[few], kind="stable")[:k]] for row, few in zip(rows, above, strict=True)]
    indices = np.stack(ranked).reshape(*numbers.shape[:-1], k)
    return torch.from_numpy(np.take_along_axis(numbers, indices, -1)), torch.from_numpy(indices)
