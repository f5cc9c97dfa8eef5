"""Tensors of numbers side by side in the bytes of one, so that a device gets all of them in one copy."""

import math
from collections.abc import Mapping
from typing import Self

import numpy as np
import torch

_DTYPES: Mapping[str, torch.dtype] = {
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
    "float32": torch.float32,
    "float64": torch.float64,
}
_ALIGNMENT = 16  # bytes: kernels load numbers at such addresses in fewer instructions

Part = tuple[str, torch.dtype, tuple[int, ...]]  # name, dtype and shape


class NumberBlock:
    """Named tensors that share one memory.

    Attributes:
        parts: the name, dtype and shape of each tensor, in order.
    """

    def __init__(self, parts: tuple[Part, ...], device: torch.device, is_pinned: bool = False) -> None:
        self.parts, self._places, stop = parts, dict[str, tuple[slice, torch.dtype, tuple[int, ...]]](), 0
        for name, dtype, shape in parts:
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT
            stop = start + math.prod(shape) * dtype.itemsize
            self._places[name] = slice(start, stop), dtype, shape
        self._data = torch.empty(stop, dtype=torch.uint8, device=device, pin_memory=is_pinned)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], is_pinned: bool) -> Self:
        """Return a block on the host with copies of arrays.

        Args:
            is_pinned: in memory that a GPU reads while the host goes on; torch reuses it when the GPU has.
        """
        parts = tuple((name, _DTYPES[each.dtype.name], each.shape) for name, each in arrays.items())
        block = cls(parts, torch.device("cpu"), is_pinned)
        numbers: np.ndarray = block._data.numpy()
        for name, each in arrays.items():
            numbers[block._places[name][0]] = np.ascontiguousarray(each).view(np.uint8).ravel()
        return block

    def __contains__(self, name: str) -> bool:
        """Return True if the block has a tensor of this name."""
        return name in self._places

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor of the block, as a view."""
        place, dtype, shape = self._places[name]
        return self._data[place].view(dtype).view(shape)

    def on(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        made = type(self)(self.parts, device)
        made.copy_(self)
        return made

    def copy_(self, other: Self) -> None:
        """Copy the numbers of another block, of the same parts, into this one."""
        self._data.copy_(other._data, non_blocking=True)  # CUDA has read ordinary memory when the call returns
