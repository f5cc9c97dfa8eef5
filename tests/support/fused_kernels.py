"""The kernels of fused layers by torch: what Triton's are compared with.

In float64, since torch's vectorised functions of float32 have other bits in the last few numbers of a tensor.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Norm, Slots


def _normed(x: torch.Tensor, by: Norm) -> torch.Tensor:
    wide = x.double()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + by.eps)
    weight = by.weight.double() + by.offset
    return ((scaled if by.is_late else scaled.to(x.dtype).double()) * weight).to(x.dtype)


def norm(x: torch.Tensor, by: Norm, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    normed = _normed(x, by)
    out.copy_(normed if residual is None else residual + normed)


def _product(x: torch.Tensor, by: LinearWeights) -> torch.Tensor:
    weight, bias = by.weight.double(), 0.0 if by.bias is None else by.bias.double()
    return torch.stack([(weight * row.double()).sum(-1) + bias for row in x]).to(x.dtype)


def products(x: torch.Tensor, matrices: Sequence[LinearWeights], out: torch.Tensor) -> None:
    out.copy_(torch.cat([_product(x, each) for each in matrices], -1))


def add_product(
    x: torch.Tensor, matrix: LinearWeights, residual: torch.Tensor, out: torch.Tensor, factor: float = 1.0
) -> None:
    out.copy_(residual + _product(x, matrix) * factor)


def gated_product(
    x: torch.Tensor, gate: LinearWeights, up: LinearWeights, activation: Activation, out: torch.Tensor
) -> None:
    act = {
        Activation.SILU: functional.silu,
        Activation.GELU: functional.gelu,
        Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    }[activation]
    out.copy_(act(_product(x, gate).double()).to(x.dtype) * _product(x, up))


def place(
    qkv: torch.Tensor,
    heads: Heads,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    to: Slots,
    query: torch.Tensor,
) -> None:
    num_nodes, (rows, width) = len(qkv), to.slots.shape
    split = qkv.view(num_nodes, -1, heads.size).split([heads.num_heads, heads.num_groups, heads.num_groups], 1)
    q, k, v = split
    if heads.q_norm is not None and heads.k_norm is not None:
        q, k = _normed(q, heads.q_norm), _normed(k, heads.k_norm)
    if angles is not None:
        q, k = (_rotated(each, *angles) for each in (q, k))
    query.copy_(q.flatten(1))
    to.keys[to.rows, :, to.slots] = k.view(rows, width, *k.shape[1:])
    to.values[to.rows, :, to.slots] = v.view(rows, width, *v.shape[1:])


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[1] // 2
    low, high, rest = x.split([half, half, x.shape[2] - 2 * half], 2)
    turned = torch.cat((-high, low), 2)
    rotated = torch.cat((low, high), 2) * cos[:, None] + turned * sin[:, None]
    return torch.cat((rotated.to(x.dtype), rest), 2)
