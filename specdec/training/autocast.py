"""Passes in a half dtype over weights in float32."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context in which passes compute in ``dtype`` if that is a half one, and else in float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
