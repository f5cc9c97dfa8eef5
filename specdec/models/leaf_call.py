"""Functions that torch's function modes see as a single call, like torch's own."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import wrap_torch_function

Function = TypeVar("Function", bound=Callable[..., Any])


def leaf_call(function: Function) -> Function:
    """Decorate a function of a module or layer and tensors, so that function modes see a leaf call."""
    wrapped: Function = wrap_torch_function(_first_tensor)(function)  # type: ignore[assignment]  # the same signature
    wrapped.is_leaf_call = True  # type: ignore[attr-defined]  # it has now
    return wrapped


def is_leaf_call(function: Any) -> bool:
    """Return True for a function decorated by ``leaf_call``."""
    return getattr(function, "is_leaf_call", False)


def _first_tensor(module: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor]:
    """Return a tensor for torch to inspect; a function mode is called for any class."""
    return (tensor,)
