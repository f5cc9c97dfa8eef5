"""The arguments of a fused layer's kernels: norms, matrices, heads, and slots for keys and values."""

from dataclasses import dataclass
from enum import IntEnum

import torch


class Activation(IntEnum):
    """The activations of gated products."""

    SILU = 0
    GELU_TANH = 1
    GELU = 2


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm.

    Attributes:
        weight: (size,).
        offset: is added to the weight: 1 in Gemma's.
        is_late: numbers are rounded to the model's dtype after they are multiplied by the weight, not before.
    """

    weight: torch.Tensor
    eps: float
    offset: float = 0.0
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A linear layer: weight (outputs, inputs), bias (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def num_inputs(self) -> int:
        return self.weight.shape[1]

    @property
    def num_outputs(self) -> int:
        return len(self.weight)


@dataclass(frozen=True, slots=True)
class ModuleProduct:
    """A linear layer that multiplies by itself, as those with quantised weights or adapters do."""

    module: torch.nn.Module
    num_inputs: int
    num_outputs: int

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product of rows, (rows, inputs): (rows, outputs)."""
        product: torch.Tensor = self.module(x[None])[0]
        return product


Matrix = LinearWeights | ModuleProduct


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of attention; norms of single heads, with one epsilon, are computed with the rotation."""

    num_heads: int
    num_groups: int
    size: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots for the keys and values of a pass.

    Attributes:
        rows: of the cache, (rows of the pass, 1).
        slots: (rows of the pass, width).
        keys, values: (rows of the cache, groups, slots, size).
    """

    rows: torch.Tensor
    slots: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
