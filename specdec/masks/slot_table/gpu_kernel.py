"""The kernels of ``kernel.py`` for GPUs, in Triton: flash attention (Dao et al. 2022) by slot tables.

A program attends for a tile: neighbouring nodes of one row, with the heads of one group. Up to the chunk in which a
node's list begins, its slots are its positions: a tile reads those keys and values once, and masks what a node doesn't
see. The chunks from there on are read for each node alone.

A node's bits are those that it has alone: its keys are added in the order of positions, in blocks and chunks with the
same borders for all nodes, and what it doesn't see changes no bit, as long as it is finite. Sums are accumulators of
products, whose bits don't depend on tiles in half precision: tensor cores add a fixed number of products at a time
(MMA-Sim, arXiv 2511.10909).
In float32, on GPUs before Ampere, and on Blackwell, whose large tiles have another instruction, all tiles have one
size. The compiler may not fuse multiplications and additions, as it might do so in one kernel and not in another.
"""

import torch
import triton
import triton.language as tl

from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.kernel import CHUNK, FIRST, NUM_HEADER, PREFIX, ROW, STOP
from specdec.models.independent_rows_kernels import takes_large_tiles

_MOST_PROGRAMS = 128  # of tiles and groups in passes that are split; more keep a GPU busy by themselves
_MOST_NUMBERS = 2**26  # written for all chunks, 256 MB; passes with more aren't split either

_ROW, _FIRST, _PREFIX, _STOP, _HEADER = map(tl.constexpr, (ROW, FIRST, PREFIX, STOP, NUM_HEADER))
_FAR = tl.constexpr(2**30)  # a position after all others
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _nothing(sinks, heads, ROWS: tl.constexpr, VALUES: tl.constexpr, HAS_SINKS: tl.constexpr):
    """The sums of p V and of p, and the maxima of the scores, before the first chunk."""
    total, m = tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32)
    if HAS_SINKS:
        total, m = total + 1.0, tl.load(sinks + heads).to(tl.float32) * _LOG2E
    return tl.zeros([ROWS, VALUES], tl.float32), total, m


@triton.jit
def _merged(acc, total, m, own, own_total, own_m):
    """Merge a chunk's sums and maxima with those of the chunks before it."""
    top = tl.maximum(m, own_m)
    shift = tl.where(top == float("-inf"), 0.0, top)  # no key was seen yet
    fade, weight = tl.exp2(m - shift), tl.exp2(own_m - shift)
    return acc * fade[:, None] + own * weight[:, None], total * fade + own_total * weight, top


@triton.jit
def _view(view, table, t_node, index, is_row, NODES: tl.constexpr, CHUNK: tl.constexpr):
    """A view of the cache: for all nodes of a tile, view 0, or for one of them that lists slots, views 1 … NODES.

    Returns the positions between which each row sees keys, and all rows together, from which position on slots are
    listed, the list, and the number of views.
    """
    entries, is_own = table + index * t_node, view > 0
    is_row &= (index == view - 1) | (view == 0)
    first = tl.load(entries + _FIRST, mask=is_row, other=_FAR)
    prefix = tl.load(entries + _PREFIX, mask=is_row, other=0)
    stop = tl.load(entries + _STOP, mask=is_row, other=0)
    shared = tl.where(prefix < stop, prefix // CHUNK * CHUNK, stop)
    views = tl.where(tl.max(stop - shared) > 0, NODES + 1, 1)
    begin = tl.maximum(tl.min(first), tl.where(is_own, tl.max(shared), 0))
    stop, prefix = tl.where(is_own, stop, shared), tl.where(is_own, tl.max(prefix), _FAR)
    return first, stop, begin, tl.max(stop), prefix, table + (view - 1) * t_node + _HEADER, views


@triton.jit
def _chunk(
    q, key, value, k_slot, v_slot, first, stop, begin, end, prefix, listed, scale, softcap,
    ROWS: tl.constexpr, KEY: tl.constexpr, KEYS: tl.constexpr, VALUE: tl.constexpr, VALUES: tl.constexpr,
    BLOCK: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """The sums of p V and of p, and the maxima of the scores, in units of log 2, over ``begin`` … ``end`` of a chunk.

    Each row sees the positions ``first`` … ``stop`` of these. Slots are listed from position ``prefix`` on.
    """
    key_size, value_size = tl.arange(0, KEYS)[:, None], tl.arange(0, VALUES)[None, :]
    ones = tl.full([BLOCK, 16], 1.0, q.dtype)
    m, totals = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS, 16], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    for block in tl.range(begin // BLOCK, tl.cdiv(end, BLOCK)):
        positions = block * BLOCK + tl.arange(0, BLOCK)
        is_read, is_listed = (positions >= begin) & (positions < end), positions >= prefix
        slots = tl.load(listed + positions - prefix, mask=is_read & is_listed, other=0)
        slots = tl.where(is_listed, slots, positions).to(tl.int64)
        k = tl.load(key + slots[None, :] * k_slot + key_size, mask=is_read[None, :] & (key_size < KEY), other=0.0)
        is_value = is_read[:, None] & (value_size < VALUE)
        v = tl.load(value + slots[:, None] * v_slot + value_size, mask=is_value, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if HAS_CAP:
            scores = softcap * _LOG2E * (1.0 - 2.0 / (1.0 + tl.exp2(2.0 * scores / softcap)))  # tanh
        is_seen = (positions[None, :] >= first[:, None]) & (positions[None, :] < stop[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        top = tl.maximum(m, tl.max(scores, 1))
        shift = tl.where(top == float("-inf"), 0.0, top)
        fade, p = tl.exp2(m - shift)[:, None], tl.exp2(scores - shift[:, None]).to(q.dtype)
        totals = tl.dot(p, ones, totals * fade, input_precision="ieee")
        acc = tl.dot(p, v, acc * fade, input_precision="ieee")
        m = top
    return acc, tl.max(totals, 1), m  # the columns of totals are equal


@triton.jit(do_not_specialize=["width", "num_chunks", "t_row", "t_node"])
def _attend(
    query, key, value, table, sinks, out, acc_out, norm_out, scale, softcap,
    q_row, q_head, q_node, k_row, k_group, k_slot, v_row, v_group, v_slot, t_row, t_node, width, num_chunks,
    HEADS: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr, KEYS: tl.constexpr,
    VALUE: tl.constexpr, VALUES: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, OWN: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_FINAL: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Attention of a tile or, if IS_SPLIT, a part of it: one chunk for all its nodes, or for one that lists slots.

    If IS_FINAL it is written to ``out``, otherwise the chunk's sums and maxima are written, for ``_merge``.
    """
    tiles = tl.cdiv(width, NODES)
    row, start = tl.program_id(0) // tiles, tl.program_id(0) % tiles * NODES
    group, chunk, rows = tl.program_id(1), tl.program_id(2), tl.arange(0, ROWS)
    index, node, heads = rows // HEADS, start + rows // HEADS, group * HEADS + rows % HEADS
    is_row = (index < NODES) & (node < width)
    table += row * t_row + start * t_node
    if IS_SPLIT:
        part = chunk - num_chunks  # after those of all nodes, OWN for each node
        view = tl.where(part < 0, 0, part // OWN + 1)
        first, stop, begin, end, prefix, listed, _ = _view(view, table, t_node, index, is_row, NODES, CHUNK)
        chunk = tl.where(part < 0, chunk, begin // CHUNK + part % OWN)
        begin, end = tl.maximum(begin, chunk * CHUNK), tl.minimum(end, chunk * CHUNK + CHUNK)
        if begin >= end:
            return
        is_row &= stop > chunk * CHUNK
    of_row, key_size = tl.load(table + _ROW).to(tl.int64), tl.arange(0, KEYS)[None, :]
    key += of_row * k_row + group * k_group
    value += of_row * v_row + group * v_group
    query += row.to(tl.int64) * q_row + (heads * q_head + node * q_node)[:, None] + key_size
    q = tl.load(query, mask=is_row[:, None] & (key_size < KEY), other=0.0)
    acc, total, m = _nothing(sinks, heads, ROWS, VALUES, HAS_SINKS)
    if IS_SPLIT:
        own, own_total, own_m = _chunk(
            q, key, value, k_slot, v_slot, first, stop, begin, end, prefix, listed, scale, softcap,
            ROWS, KEY, KEYS, VALUE, VALUES, BLOCK, HAS_CAP,
        )  # fmt: skip
        acc, total, m = _merged(acc, total, m, own, own_total, own_m)
    else:
        view, views = 0, 1
        while view < views:
            first, stop, begin, end, prefix, listed, found = _view(view, table, t_node, index, is_row, NODES, CHUNK)
            while begin < end:
                until = tl.minimum(end, begin // CHUNK * CHUNK + CHUNK)
                own, own_total, own_m = _chunk(
                    q, key, value, k_slot, v_slot, first, stop, begin, until, prefix, listed, scale, softcap,
                    ROWS, KEY, KEYS, VALUE, VALUES, BLOCK, HAS_CAP,
                )  # fmt: skip
                acc, total, m = _merged(acc, total, m, own, own_total, own_m)
                begin = until
            view, views = view + 1, tl.maximum(views, found)
    to, value_size = (row * width + node) * tl.num_programs(1) * HEADS + heads, tl.arange(0, VALUES)[None, :]
    is_out = is_row[:, None] & (value_size < VALUE)
    if IS_FINAL:
        tl.store(out + to[:, None] * VALUE + value_size, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_out)
    else:
        to = to * num_chunks + chunk
        tl.store(acc_out + to[:, None] * VALUE + value_size, acc, mask=is_out)
        tl.store(norm_out + to * 2, total, mask=is_row)
        tl.store(norm_out + to * 2 + 1, m, mask=is_row)


@triton.jit(do_not_specialize=["width", "num_chunks", "t_row", "t_node"])
def _merge(
    acc_in, norm_in, table, sinks, out, t_row, t_node, width, num_chunks, num_heads,
    VALUE: tl.constexpr, VALUES: tl.constexpr, CHUNK: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merge the chunks that one node sees in their order, for one head."""
    place, head, value_size = tl.program_id(0), tl.program_id(1) + tl.arange(0, 1), tl.arange(0, VALUES)[None, :]
    table += place // width * t_row + place % width * t_node
    acc, total, m = _nothing(sinks, head, 1, VALUES, HAS_SINKS)
    begin, end = tl.load(table + _FIRST) // CHUNK, tl.cdiv(tl.load(table + _STOP), CHUNK)
    for chunk in tl.range(begin, end, loop_unroll_factor=4):  # whose loads are then on their way together
        at = (place * num_heads + head) * num_chunks + chunk
        own = tl.load(acc_in + at[:, None] * VALUE + value_size, mask=value_size < VALUE, other=0.0)
        acc, total, m = _merged(acc, total, m, own, tl.load(norm_in + at * 2), tl.load(norm_in + at * 2 + 1))
    to = (place * num_heads + head)[:, None] * VALUE + value_size
    tl.store(out + to, (acc / total[:, None]).to(out.dtype.element_ty), mask=value_size < VALUE)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Return attention, (rows, width, heads, value size).

    Args:
        query: (rows, heads, width, size).
        key, value: (rows of the cache, groups, slots, size).
        table: (rows, width, 4 + listed), int32.
    """
    (rows, heads, width, key_size), (groups, slots), size = query.shape, key.shape[1:3], value.shape[3]
    query, key, value = (states if states.stride(3) == 1 else states.contiguous() for states in (query, key, value))
    out, num_chunks = query.new_empty(rows, width, heads, size), -(-slots // CHUNK)
    of_group = heads // groups
    is_tall = takes_large_tiles(query) and of_group * width > 32 and num_chunks > 1
    nodes = max(1, (64 if is_tall else 16) // of_group)  # products have 16 rows at least, those of warp groups 64
    tiles = rows * -(-width // nodes)
    # Split passes have a program for each chunk; in others a tile's program goes through its chunks.
    is_split = num_chunks == 1 or (tiles * groups < _MOST_PROGRAMS and out.numel() * num_chunks <= _MOST_NUMBERS)
    is_final = num_chunks == 1 or not is_split
    num_partial = 0 if is_final else out.numel() * num_chunks
    acc, norms = (out.new_empty(num_partial // size * count, dtype=torch.float32) for count in (size, 2))
    tile_rows = max(16, triton.next_power_of_2(nodes * of_group))
    own = (table.shape[2] - NUM_HEADER + CHUNK - 2) // CHUNK + 1  # the chunks that a list may reach into
    keys, values = (max(16, triton.next_power_of_2(each)) for each in (key_size, size))
    needs_registers = query.element_size() == 4 or tile_rows * values >= 64 * (256 if is_split else 128)
    has_sinks, sinks = kind.sinks is not None, out if kind.sinks is None else kind.sinks
    grid = tiles, groups, num_chunks + nodes * own if is_split else 1
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        _attend[grid](
            query, key, value, table, sinks, out, acc, norms, kind.scale * _LOG2E.value, kind.softcap or 1.0,
            *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *table.stride()[:2], width, num_chunks,
            HEADS=of_group, NODES=nodes, ROWS=tile_rows, KEY=key_size, KEYS=keys, VALUE=size, VALUES=values,
            CHUNK=CHUNK, BLOCK=64 if max(keys, values) * query.element_size() <= 256 else 32, OWN=own,
            IS_SPLIT=is_split, IS_FINAL=is_final, HAS_CAP=kind.softcap is not None, HAS_SINKS=has_sinks and is_final,
            num_warps=8 if needs_registers else 4, num_stages=2, enable_fp_fusion=False,
        )  # fmt: skip
        if not is_final:
            _merge[rows * width, heads](
                acc, norms, table, sinks, out, *table.stride()[:2], width, num_chunks, heads,
                VALUE=size, VALUES=values, CHUNK=CHUNK, HAS_SINKS=has_sinks, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
    return out
