"""Top-k of many logits, by blocks."""

from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
import torch

Top = tuple[tuple[int, ...], tuple[float, ...]]  # tokens, and their probabilities or logits, the largest first

_BLOCK, _LEAST_BLOCK = 256, 32  # logits of a block
_WIDTH = 1024  # parts of logits on the host, each of every 1024th
_MANY = 4  # times k


def topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The top-k values along the last dimension, largest first, and their indices; for k = 1, the lowest of equals.

    A maximum over blocks is vectorised on every device; a search for an index isn't on a CPU. The top-k values lie in
    the k blocks with the largest maxima, so only these are searched.
    """
    size = values.shape[-1]
    if lists := host_top_lists(values.reshape(1, -1, size), k):
        indices, found = lists
        shape = *values.shape[:-1], k
        return (
            torch.tensor(found, dtype=values.dtype, device="cpu").reshape(shape),
            torch.tensor(indices, dtype=torch.long, device="cpu").reshape(shape),
        )
    return _topk_by_torch(values, k)


def _topk_by_torch(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = values.shape[-1]
    k, block = min(k, size), min(_BLOCK, size & -size)
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


def top_lists(values: torch.Tensor, k: int) -> tuple[list[Any], list[Any]]:
    """The indices and values of ``topk`` of ``(rows, columns, size)``, as lists; one transfer from a device."""
    if lists := host_top_lists(values, k):
        return lists
    found, indices = _topk_by_torch(values, k)
    both = torch.stack([indices.double(), found.double()]).cpu()
    return both[0].long().tolist(), both[1].tolist()


def host_top_lists(values: torch.Tensor, k: int) -> tuple[list[Any], list[Any]] | None:
    """The indices and values of ``topk`` of ``(rows, columns, size)``, as lists; None where torch has to search.

    Of equals the lowest comes first. It takes few operations, by numpy on one thread: a pass leaves no code in the
    processor's caches, and waking torch's threads slows an engine with threads of its own. Torch searches on devices,
    in other types than float32, in few values, and where the top-k aren't finite.
    """
    num_columns, size = values.shape[1:]
    if not (values.is_cpu and values.dtype == torch.float32 and size >= _WIDTH >= k):
        return None
    flat: np.ndarray = values.detach().numpy().reshape(-1, size)
    # The k parts with the largest maxima each have a value that is at least the smallest of these maxima.
    num_rest = size % _WIDTH
    maxima = flat[:, : size - num_rest].reshape(len(flat), -1, _WIDTH).max(1)
    if num_rest:
        np.maximum(maxima[:, :num_rest], flat[:, -num_rest:], out=maxima[:, :num_rest])
    maxima.partition(-k)
    if not all(map(isfinite, chain.from_iterable(maxima[:, -k:].tolist()))):
        return None
    least = maxima[:, -k]
    places = (flat >= least[:, None]).ravel().nonzero()[0]
    if len(places) > _MANY * k * len(flat):
        places = _top_places(flat, least, k)
    above: list[list[tuple[float, int]]] = [[] for _ in flat]
    for place, value in zip(places.tolist(), flat.ravel()[places].tolist(), strict=True):
        row, index = divmod(place, size)
        above[row].append((-value, index))
    best = [sorted(each)[:k] for each in above]
    indices, found = [[index for _, index in each] for each in best], [[-value for value, _ in each] for each in best]
    firsts = range(0, len(flat), num_columns)
    return [indices[at : at + num_columns] for at in firsts], [found[at : at + num_columns] for at in firsts]


def _top_places(flat: np.ndarray, least: np.ndarray, k: int) -> np.ndarray:
    """The places in all of ``(columns, size)`` of values above a column's least, and of the first k equal to it."""
    kept = [
        np.concatenate(((column > limit).nonzero()[0], (column == limit).nonzero()[0][:k])) + start
        for column, limit, start in zip(flat, least, range(0, flat.size, flat.shape[1]), strict=True)
    ]
    return np.concatenate(kept)
