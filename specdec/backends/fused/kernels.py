"""The kernels of a fused decoder layer, in Triton: norm, products, rotation; attention is the slot table's.

A row's bits depend neither on the number of rows nor on their order: one program adds up a norm, and a product's inputs
are added in one accumulator from the first to the last. Tiles don't change the bits of half precision on tensor cores
(MMA-Sim, arXiv 2511.10909): 16 inputs at a time are added to the accumulator, whatever the tile. In float32, where
tiles may change them, and on Blackwell, whose large tiles have another instruction, tiles have 16 rows.

Results are rounded where the model's own code rounds them: after each operation, except within a product and a norm.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Norm, Slots

_LEAST_ROWS = 16  # of a tile, the fewest that tensor cores multiply
_MANY_ROWS = 64  # of a tile in wide passes, for Hopper's instruction for warp groups
_BLACKWELL = 10, 0  # whose instruction for large tiles may have bits of its own
_FEW_COLUMNS, _COLUMNS = 2304, 8192  # of a matrix: smaller tiles, so that all multiprocessors read
_STAGES = 4
_NO_ACTIVATION = -1


@triton.jit
def _norm(
    x, weight, residual, out, row_stride, out_stride, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr, IS_LATE: tl.constexpr, IS_ADDED: tl.constexpr,
):  # fmt: skip
    """RMSNorm of one row (Zhang and Sennrich 2019, equation 4), plus the residual if IS_ADDED."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_inside = at < SIZE
    dtype = out.dtype.element_ty
    wide = tl.load(x + row * row_stride + at, mask=is_inside, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=is_inside, other=0.0).to(tl.float32) + OFFSET
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    if not IS_LATE:
        scaled = scaled.to(dtype).to(tl.float32)
    result = (scaled * w).to(dtype)
    if IS_ADDED:
        before = tl.load(residual + row * out_stride + at, mask=is_inside, other=0.0)
        result = (before.to(tl.float32) + result.to(tl.float32)).to(dtype)
    tl.store(out + row * out_stride + at, result, mask=is_inside)


def norm(x: torch.Tensor, by: Norm, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """Write the norm of rows, (rows, size), to ``out``, plus the residual if there is one; ``out`` may be either."""
    size = x.shape[1]
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        _norm[(len(x),)](
            x, by.weight, out if residual is None else residual, out, x.stride(0), out.stride(0), by.eps,
            SIZE=size, BLOCK=triton.next_power_of_2(size), OFFSET=by.offset, IS_LATE=by.is_late,
            IS_ADDED=residual is not None,
        )  # fmt: skip


@triton.jit
def _activated(x, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """The activation of float32 numbers, rounded to the model's dtype."""
    if ACTIVATION == 0:  # silu
        y = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == 1:  # gelu by its approximation: 1 + tanh(z) = 2 / (1 + exp(-2 z))
        z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = x / (1.0 + tl.exp(-2.0 * z))
    else:  # gelu
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return y.to(dtype).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x, w0, w1, w2, b0, b1, b2, residual, out, num_rows, n0, n1, n2, x_row, w_row, out_row, factor,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, IS_ADDED: tl.constexpr, HAS_FACTOR: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """One tile of rows times up to three matrices side by side.

    With an ACTIVATION it is the activation of the product with the first matrix, times the product with the second.
    """
    tile = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    w, b, n, before = w0, b0, n0, 0
    if ACTIVATION < 0:
        t0, t1 = tl.cdiv(n0, COLUMNS), tl.cdiv(n1, COLUMNS)
        if tile >= t0 + t1:
            w, b, n, before, tile = w2, b2, n2, n0 + n1, tile - t0 - t1
        elif tile >= t0:
            w, b, n, before, tile = w1, b1, n1, n0, tile - t0
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < n
    x += rows.to(tl.int64)[:, None] * x_row
    of_columns = columns.to(tl.int64)[None, :] * w_row
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    factors = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, SIZE, INPUTS):
        inputs = begin + tl.arange(0, INPUTS)
        is_input = inputs < SIZE
        is_weight = is_column[None, :] & is_input[:, None]
        a = tl.load(x + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        acc = tl.dot(
            a, tl.load(w + of_columns + inputs[:, None], mask=is_weight, other=0.0), acc, input_precision="ieee"
        )
        if ACTIVATION >= 0:
            b_tile = tl.load(w1 + of_columns + inputs[:, None], mask=is_weight, other=0.0)
            factors = tl.dot(a, b_tile, factors, input_precision="ieee")
    dtype = out.dtype.element_ty
    if HAS_BIAS:
        acc += tl.load(b + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION >= 0:
            factors += tl.load(b1 + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    result = acc.to(dtype).to(tl.float32)
    if ACTIVATION >= 0:
        result = _activated(result, dtype, ACTIVATION) * factors.to(dtype).to(tl.float32)
    if HAS_FACTOR:
        result = (result * factor).to(dtype).to(tl.float32)
    to = rows.to(tl.int64)[:, None] * out_row + (before + columns)[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    if IS_ADDED:
        result += tl.load(residual + to, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + to, result.to(dtype), mask=is_inside)


def products(x: torch.Tensor, matrices: Sequence[LinearWeights], out: torch.Tensor) -> None:
    """Write the products of rows, (rows, inputs), with up to three matrices to ``out``, (rows, all outputs)."""
    _launch(x, matrices, out)


def add_product(
    x: torch.Tensor, matrix: LinearWeights, residual: torch.Tensor, out: torch.Tensor, factor: float = 1.0
) -> None:
    """Write the residual plus a factor times the product of rows with a matrix to ``out``, (rows, outputs).

    ``out`` may be the residual.
    """
    _launch(x, [matrix], out, residual=residual, factor=factor)


def gated_product(
    x: torch.Tensor, gate: LinearWeights, up: LinearWeights, activation: Activation, out: torch.Tensor
) -> None:
    """Write the activation of the product with ``gate``, times the product with ``up``, to ``out``, (rows, outputs)."""
    _launch(x, [gate, up], out, activation=activation)


def _launch(
    x: torch.Tensor,
    matrices: Sequence[LinearWeights],
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    factor: float = 1.0,
    activation: int = _NO_ACTIVATION,
) -> None:
    weights = [matrix.weight for matrix in matrices]
    biases = [weight if matrix.bias is None else matrix.bias for matrix, weight in zip(matrices, weights, strict=True)]
    counts = [len(weight) for weight in weights]
    is_gated, missing = activation != _NO_ACTIVATION, 3 - len(matrices)
    tiled = counts[:1] if is_gated else counts
    rows, columns = _tile(x, sum(tiled), is_gated)
    grid = sum(-(-count // columns) for count in tiled), -(-len(x) // rows)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # as above
        _product[grid](
            x, *weights, *weights[:1] * missing, *biases, *biases[:1] * missing,
            out if residual is None else residual, out,
            len(x), *counts, *[0] * missing, x.stride(0), weights[0].stride(0), out.stride(0), factor,
            SIZE=x.shape[1], ROWS=rows, COLUMNS=columns, INPUTS=256 // x.element_size(),
            HAS_BIAS=matrices[0].bias is not None, IS_ADDED=residual is not None, HAS_FACTOR=factor != 1.0,
            ACTIVATION=activation, num_stages=_STAGES,
        )  # fmt: skip


def _tile(x: torch.Tensor, num_columns: int, is_gated: bool) -> tuple[int, int]:
    """Return the rows and columns of a tile; any tile fits into 100 kilobytes, which all GPUs from Ampere on have."""
    columns = 16 if num_columns <= _FEW_COLUMNS else 32 if num_columns <= _COLUMNS or is_gated else 64
    is_neutral = x.element_size() == 2 and not (x.is_cuda and torch.cuda.get_device_capability(x.device) >= _BLACKWELL)
    return _MANY_ROWS if is_neutral and len(x) > _MANY_ROWS // 2 else _LEAST_ROWS, columns


@triton.jit(do_not_specialize=["width"])
def _place(
    qkv, cos, sin, q_weight, k_weight, rows, slots, query, key, value,
    eps, qkv_row, angles_row, width, k_row, k_group, k_slot, v_row, v_group, v_slot,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr,
    HAS_NORM: tl.constexpr, OFFSET: tl.constexpr, IS_LATE: tl.constexpr,
):  # fmt: skip
    """One head of one node: queries are normed and rotated, keys as well and cached; values are cached."""
    node, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    is_inside, is_rotated = at < SIZE, at < 2 * HALF
    partner = tl.where(at < HALF, at + HALF, at - HALF)
    partner = tl.where(is_rotated, partner, at)
    source = qkv + node * qkv_row + head * SIZE
    own = tl.load(source + at, mask=is_inside, other=0.0)
    dtype = own.dtype
    row, slot = tl.load(rows + node // width).to(tl.int64), tl.load(slots + node).to(tl.int64)
    if head >= HEADS + GROUPS:
        to = value + row * v_row + (head - HEADS - GROUPS) * v_group + slot * v_slot + at
        tl.store(to, own, mask=is_inside)
    else:
        x, other = own.to(tl.float32), tl.load(source + partner, mask=is_inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            weight = q_weight
            if head >= HEADS:
                weight = k_weight
            w = tl.load(weight + at, mask=is_inside, other=0.0).to(tl.float32) + OFFSET
            other_w = tl.load(weight + partner, mask=is_inside, other=0.0).to(tl.float32) + OFFSET
            scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
            x, other = x * scale, other * scale
            if not IS_LATE:
                x, other = x.to(dtype).to(tl.float32), other.to(dtype).to(tl.float32)
            x, other = (x * w).to(dtype).to(tl.float32), (other * other_w).to(dtype).to(tl.float32)
        if HALF > 0:
            # Products round to the dtype of the angles, as the model's own code does.
            angles = node * angles_row + at
            c, s = tl.load(cos + angles, mask=is_rotated, other=1.0), tl.load(sin + angles, mask=is_rotated, other=0.0)
            wide = c.dtype
            along = (x * c.to(tl.float32)).to(wide).to(tl.float32)
            across = (other * s.to(tl.float32)).to(wide).to(tl.float32)
            rotated = tl.where(at < HALF, along - across, along + across)
            x = tl.where(is_rotated, rotated, x)
        if head < HEADS:
            tl.store(query + node * HEADS * SIZE + head * SIZE + at, x.to(dtype), mask=is_inside)
        else:
            to = key + row * k_row + (head - HEADS) * k_group + slot * k_slot + at
            tl.store(to, x.to(dtype), mask=is_inside)


def place(
    qkv: torch.Tensor,
    heads: Heads,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    to: Slots,
    query: torch.Tensor,
) -> None:
    """Norm and rotate queries and keys; write keys and values to the cache, and queries to ``query``.

    Args:
        qkv: (nodes, (heads + 2 groups) * size).
        angles: the cosines and sines of each node's position, (nodes, rotated part of a head); None for no rotation.
        query: (nodes, heads * size).
    """
    cos, sin = (qkv, qkv) if angles is None else angles
    half = 0 if angles is None else cos.shape[1] // 2
    q_norm, k_norm = heads.q_norm, heads.k_norm
    has_norm = q_norm is not None and k_norm is not None
    width = to.slots.shape[1]
    with torch.cuda.device_of(qkv):  # type: ignore[no-untyped-call]  # as above
        _place[(len(qkv), heads.num_heads + 2 * heads.num_groups)](
            qkv, cos, sin, q_norm.weight if q_norm else qkv, k_norm.weight if k_norm else qkv, to.rows, to.slots,
            query, to.keys, to.values,
            q_norm.eps if q_norm else 0.0, qkv.stride(0), cos.stride(0), width,
            *to.keys.stride()[:3], *to.values.stride()[:3],
            HEADS=heads.num_heads, GROUPS=heads.num_groups, SIZE=heads.size, BLOCK=triton.next_power_of_2(heads.size),
            HALF=half, HAS_NORM=has_norm, OFFSET=q_norm.offset if q_norm else 0.0,
            IS_LATE=bool(q_norm and q_norm.is_late),
        )  # fmt: skip
