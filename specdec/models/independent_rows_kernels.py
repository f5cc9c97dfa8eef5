"""The kernels of ``independent_rows.py`` for GPUs, in Triton; fused layers have the same products.

Sums are added in an order that doesn't depend on the number of rows: a product's inputs in one accumulator from the
first to the last. Tiles don't change the bits of half precision on tensor cores (MMA-Sim, arXiv 2511.10909): 16 inputs
at a time are added to the accumulator, whatever the tile. In float32 and on older GPUs, where tiles may change them,
and on Blackwell, whose large tiles have another instruction, tiles have 16 rows.
"""

import torch
import triton
import triton.language as tl

_MOST_AT_ONCE = 4096  # numbers of a sum that are added to one another in one operation
_LEAST_ROWS = 16  # of a tile, the fewest that tensor cores multiply
_MANY_ROWS = 64  # of a tile in wide passes, for Hopper's instruction for warp groups
_AMPERE, _BLACKWELL = (8, 0), (10, 0)  # the first whose tensor cores Triton uses; another instruction for large tiles
_FEW_COLUMNS, _COLUMNS = 2304, 8192  # of a matrix: smaller tiles, so that all multiprocessors read
_STAGES = 4


@triton.jit(do_not_specialize=["stride"])
def _sum_of_row(x, out, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_MEAN: tl.constexpr):
    """The sum or mean of one row."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, SIZE, BLOCK):
        acc += tl.load(x + row * stride + begin + columns, mask=begin + columns < SIZE, other=0.0).to(tl.float32)
    total = tl.sum(acc, 0)
    if IS_MEAN:
        total = total / SIZE
    tl.store(out + row, total)


def sums(rows: torch.Tensor, is_mean: bool) -> torch.Tensor:
    """Return the sums of rows, (rows, size), or their means, in float32: (rows,)."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = rows.new_empty(len(rows), dtype=torch.float32)
    size = rows.shape[1]
    if out.numel():
        block = min(_MOST_AT_ONCE, triton.next_power_of_2(size))
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
            _sum_of_row[(len(rows),)](rows, out, rows.stride(0), SIZE=size, BLOCK=block, IS_MEAN=is_mean)
    return out


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


def products(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the products of rows, (rows, inputs), with a matrix, (outputs, inputs), plus the bias, (outputs,)."""
    rows, weight = (each if each.stride(1) == 1 else each.contiguous() for each in (rows, weight))
    out = rows.new_empty(len(rows), len(weight))
    if out.numel():
        multiply(rows, [weight], [bias], out)
    return out


def multiply(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor | None],
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    factor: float = 1.0,
    activation: int = -1,
) -> None:
    """Write the products of rows with matrices to ``out``, (rows, all outputs).

    Args:
        x: (rows, inputs).
        weights: up to three, (outputs, inputs) each, of one stride.
        biases: (outputs,) each, or None for all.
        residual: (rows, all outputs), added to ``factor`` times the products; ``out`` may be it.
        activation: of the product with the first of two matrices, which is multiplied by that with the second; -1 for
            none.
    """
    given = [weight if bias is None else bias for bias, weight in zip(biases, weights, strict=True)]
    counts, missing = [len(weight) for weight in weights], 3 - len(weights)
    tiled = counts if activation < 0 else counts[:1]
    rows, columns = _tile(x, sum(tiled), activation >= 0)
    grid = sum(-(-count // columns) for count in tiled), -(-len(x) // rows)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # as above
        _product[grid](
            x, *weights, *weights[:1] * missing, *given, *given[:1] * missing,
            out if residual is None else residual, out,
            len(x), *counts, *[0] * missing, x.stride(0), weights[0].stride(0), out.stride(0), factor,
            SIZE=x.shape[1], ROWS=rows, COLUMNS=columns, INPUTS=256 // x.element_size(),
            HAS_BIAS=biases[0] is not None, IS_ADDED=residual is not None, HAS_FACTOR=factor != 1.0,
            ACTIVATION=activation, num_stages=_STAGES,
        )  # fmt: skip


def _tile(x: torch.Tensor, num_columns: int, is_gated: bool) -> tuple[int, int]:
    """Return the rows and columns of a tile; any tile fits into 100 kilobytes, which all GPUs from Ampere on have."""
    columns = 16 if num_columns <= _FEW_COLUMNS else 32 if num_columns <= _COLUMNS or is_gated else 64
    return _MANY_ROWS if takes_large_tiles(x) and len(x) > _MANY_ROWS // 2 else _LEAST_ROWS, columns


def takes_large_tiles(x: torch.Tensor) -> bool:
    """Return True if tiles of products with these rows may be of any size without a change of bits."""
    is_between = not x.is_cuda or _AMPERE <= torch.cuda.get_device_capability(x.device) < _BLACKWELL
    return is_between and x.element_size() == 2
