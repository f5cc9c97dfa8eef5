"""The kernels of a fused decoder layer, in Triton: norm and rotation; attention is the slot table's.

Products are those of ``specdec/models/independent_rows_kernels.py``. A row's bits depend neither on the number of rows
nor on their order: one program adds up a norm.

Results are rounded where the model's own code rounds them: after each operation, except within a product and a norm.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Norm, Slots
from specdec.models.independent_rows_kernels import multiply


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


def products(x: torch.Tensor, matrices: Sequence[LinearWeights], out: torch.Tensor) -> None:
    """Write the products of rows, (rows, inputs), with up to three matrices to ``out``, (rows, all outputs)."""
    multiply(x, [each.weight for each in matrices], [each.bias for each in matrices], out)


def add_product(
    x: torch.Tensor, matrix: LinearWeights, residual: torch.Tensor, out: torch.Tensor, factor: float = 1.0
) -> None:
    """Write the residual plus a factor times the product of rows with a matrix to ``out``, (rows, outputs).

    ``out`` may be the residual.
    """
    multiply(x, [matrix.weight], [matrix.bias], out, residual=residual, factor=factor)


def gated_product(
    x: torch.Tensor, gate: LinearWeights, up: LinearWeights, activation: Activation, out: torch.Tensor
) -> None:
    """Write the activation of the product with ``gate``, times the product with ``up``, to ``out``, (rows, outputs)."""
    multiply(x, [gate.weight, up.weight], [gate.bias, up.bias], out, activation=activation)


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
