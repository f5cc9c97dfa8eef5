"""The kernels of ``kernel.py`` for GPUs, in Triton."""

import torch
import triton
import triton.language as tl

from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.kernel import CHUNK, FIRST, NUM_HEADER, PREFIX, ROW, STOP

_MOST_NUMBERS = 2**24  # of a launch's chunks, in float32; wider passes take several launches
_LEAST_DOT = 16  # rows and columns of a product

_ROW, _FIRST, _PREFIX, _STOP, _HEADER = map(tl.constexpr, (ROW, FIRST, PREFIX, STOP, NUM_HEADER))


@triton.jit(do_not_specialize=["begin", "width", "num_chunks", "q_row", "t_row", "t_node"])
def _chunks(
    query, key, value, table, acc_out, norm_out, scale, softcap,
    q_row, q_head, q_node, k_row, k_group, k_slot, v_row, v_group, v_slot, t_row, t_node,
    begin, width, num_chunks,
    HEADS: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr, KEYS: tl.constexpr, VALUE: tl.constexpr,
    VALUES: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """One chunk of one node, for the heads of a group: the sum of p V, the maximum of the scores, the sum of p."""
    place, group, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, node = place // width, begin + place % width
    heads, key_size, value_size = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    is_head, is_key, is_value = heads < HEADS, key_size < KEY, value_size < VALUE
    entry = table + row * t_row + node * t_node
    of_row = tl.load(entry + _ROW).to(tl.int64)
    first, prefix, stop = tl.load(entry + _FIRST), tl.load(entry + _PREFIX), tl.load(entry + _STOP)
    key += of_row * k_row + group * k_group
    value += of_row * v_row + group * v_group
    query += row.to(tl.int64) * q_row + node * q_node
    q = tl.load(
        query + (group * HEADS + heads)[:, None] * q_head + key_size[None, :],
        mask=is_head[:, None] & is_key[None, :],
        other=0.0,
    )
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    for block in range(CHUNK // BLOCK):
        start = chunk * CHUNK + block * BLOCK
        if (start < stop) & (start + BLOCK > first):
            positions = start + tl.arange(0, BLOCK)
            is_seen = (positions >= first) & (positions < stop)
            listed = tl.load(entry + _HEADER + positions - prefix, mask=is_seen & (positions >= prefix), other=0)
            slots = tl.where(positions < prefix, positions, listed).to(tl.int64)
            k = tl.load(
                key + slots[None, :] * k_slot + key_size[:, None], mask=is_seen[None, :] & is_key[:, None], other=0.0
            )
            scores = tl.dot(q, k, input_precision="ieee") * scale
            if HAS_CAP:
                scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / softcap)))  # tanh
            scores = tl.where(is_seen[None, :], scores, float("-inf"))
            top = tl.maximum(m, tl.max(scores, 1))
            fade, p = tl.exp(m - top), tl.exp(scores - top[:, None])
            v = tl.load(
                value + slots[:, None] * v_slot + value_size[None, :],
                mask=is_seen[:, None] & is_value[None, :],
                other=0.0,
            )
            total = total * fade + tl.sum(p, 1)
            acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            m = top
    out = ((place.to(tl.int64) * tl.num_programs(1) + group) * HEADS + heads) * num_chunks + chunk
    tl.store(acc_out + out[:, None] * VALUE + value_size[None, :], acc, mask=is_head[:, None] & is_value[None, :])
    tl.store(norm_out + out * 2, m, mask=is_head)
    tl.store(norm_out + out * 2 + 1, total, mask=is_head)


@triton.jit(do_not_specialize=["begin", "width", "all_width", "num_chunks"])
def _merge(
    acc_in, norm_in, sinks, out, begin, width, all_width, num_chunks, num_heads,
    VALUE: tl.constexpr, VALUES: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merge the chunks of one head of one node in their order."""
    place, head = tl.program_id(0), tl.program_id(1)
    value_size = tl.arange(0, VALUES)
    is_value = value_size < VALUE
    one = tl.full([1], 1.0, tl.float32)
    if HAS_SINKS:
        m, total = tl.load(sinks + head).to(tl.float32) * one, one
    else:
        m, total = float("-inf") * one, 0.0 * one
    acc = tl.zeros([VALUES], tl.float32)
    chunk = 0
    while chunk < num_chunks:  # Triton's interpreter refuses range() of an argument
        at = (place.to(tl.int64) * num_heads + head) * num_chunks + chunk
        own_m, own_total = tl.load(norm_in + at * 2), tl.load(norm_in + at * 2 + 1)
        if own_total > 0.0:
            top = tl.maximum(m, own_m)
            fade, weight = tl.exp(m - top), tl.exp(own_m - top)
            acc = acc * fade + tl.load(acc_in + at * VALUE + value_size, mask=is_value, other=0.0) * weight
            total = total * fade + own_total * weight
            m = top
        chunk += 1
    to = (place // width).to(tl.int64) * all_width + begin + place % width
    result = (acc / total).to(out.dtype.element_ty)
    tl.store(out + (to * num_heads + head) * VALUE + value_size, result, mask=is_value)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Return attention, (rows, width, heads, value size).

    Args:
        query: (rows, heads, width, size).
        key, value: (rows of the cache, groups, slots, size).
        table: (rows, width, 4 + listed), int32.
    """
    (rows, heads, width, _), slots = query.shape, key.shape[2]
    query, key, value = (states if states.stride(3) == 1 else states.contiguous() for states in (query, key, value))
    num_chunks, size = -(-slots // CHUNK), value.shape[3]
    out = query.new_empty(rows, width, heads, size)
    most = max(1, _MOST_NUMBERS // (rows * heads * num_chunks * size))
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        for begin in range(0, width, most):
            _attend(query, key, value, table, kind, out, begin, min(most, width - begin))
    return out


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    kind: AttentionKind,
    out: torch.Tensor,
    begin: int,
    width: int,
) -> None:
    """Compute attention of ``width`` nodes of each row from node ``begin`` on."""
    (rows, all_width, heads, size), (groups, slots, key_size) = out.shape, key.shape[1:]
    num_chunks, num_places = -(-slots // CHUNK), rows * width
    acc = torch.empty(num_places, heads, num_chunks, size, dtype=torch.float32, device=query.device)
    norms = torch.empty(num_places, heads, num_chunks, 2, dtype=torch.float32, device=query.device)
    padded = max(_LEAST_DOT, triton.next_power_of_2(size))
    keys = max(_LEAST_DOT, triton.next_power_of_2(key_size))
    block = 64 if max(keys, padded) * query.element_size() <= 256 else 32
    _chunks[num_places, groups, num_chunks](
        query, key, value, table, acc, norms, kind.scale, kind.softcap or 1.0,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *table.stride()[:2],
        begin, width, num_chunks,
        HEADS=heads // groups, ROWS=max(_LEAST_DOT, triton.next_power_of_2(heads // groups)),
        KEY=key_size, KEYS=keys, VALUE=size, VALUES=padded, CHUNK=CHUNK, BLOCK=block,
        HAS_CAP=kind.softcap is not None,
    )  # fmt: skip
    sinks = acc if kind.sinks is None else kind.sinks
    _merge[num_places, heads](
        acc, norms, sinks, out, begin, width, all_width, num_chunks, heads,
        VALUE=size, VALUES=padded, HAS_SINKS=kind.sinks is not None,
    )  # fmt: skip
