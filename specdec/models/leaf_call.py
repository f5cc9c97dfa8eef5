"""Functions that torch's function modes see as one call, like torch's own functions."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import wrap_torch_function

Function = TypeVar("Function", bound=Callable[..., Any])


def one_call(function: Function) -> Function:
    """Make a function, of a module or layer and tensors, one that a recorder of calls takes as it is."""
    wrapped: Function = wrap_torch_function(_first_tensor)(function)  # type: ignore[assignment]  # the same signature
    wrapped.is_one_call = True  # type: ignore[attr-defined]  # it has now
    return wrapped


def is_one_call(function: Any) -> bool:
    """Return True for a function that ``one_call`` has made one."""
    return getattr(function, "is_one_call", False)


def _first_tensor(module: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor]:
    """Return one tensor for torch to inspect: a function mode is called for any class."""
    return (tensor,)
