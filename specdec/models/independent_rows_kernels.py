"""The kernels of ``independent_rows.py`` for GPUs, in Triton.

Neither the block sizes nor the order of a sum depend on the number of rows.
"""

import torch
import triton
import triton.language as tl

_MOST_AT_ONCE = 4096  # numbers of a sum that are added to one another in one operation
_ROWS = 16  # of a block of products, the fewest that tensor cores multiply
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


@triton.jit(do_not_specialize=["num_rows", "x_row", "out_row"])
def _product(
    x, weight, bias, out, num_rows, num_columns, x_row, weight_row, out_row,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One block of rows times one block of the matrix's rows, plus the bias."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < num_rows, columns < num_columns
    x += rows.to(tl.int64)[:, None] * x_row
    weight += columns.to(tl.int64)[None, :] * weight_row
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, SIZE, INPUTS):
        inputs = begin + tl.arange(0, INPUTS)
        is_input = inputs < SIZE
        a = tl.load(x + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        b = tl.load(weight + inputs[:, None], mask=is_column[None, :] & is_input[:, None], other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    place = out + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def products(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the products of rows, (rows, inputs), with a matrix, (outputs, inputs), plus the bias, (outputs,)."""
    rows, weight = (each if each.stride(1) == 1 else each.contiguous() for each in (rows, weight))
    num_columns, size = weight.shape
    out = rows.new_empty(len(rows), num_columns)
    if out.numel():
        # Small matrices are divided further, so that all of the GPU's multiprocessors read them.
        columns = 16 if num_columns <= 2304 else 32 if num_columns <= 8192 else 64
        grid = -(-num_columns // columns), -(-len(rows) // _ROWS)
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # as above
            _product[grid](
                rows, weight, weight if bias is None else bias, out,
                len(rows), num_columns, rows.stride(0), weight.stride(0), num_columns,
                SIZE=size, ROWS=_ROWS, COLUMNS=columns, INPUTS=256 // rows.element_size(), HAS_BIAS=bias is not None,
                num_stages=_STAGES,
            )  # fmt: skip
    return out
