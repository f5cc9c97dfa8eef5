"""Tests whether batched expert products make a mixture of experts bit-exact.

Ordinary products pass each expert the rows that chose it, often so few that libraries compute them in another way.
Batched products compute each row separately. They don't help if the modelling code supports neither or has other
sources of rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from specdec.weights.layers import is_sharded

_BATCHED = "batched_mm"


@contextmanager
def batched_experts(model: Any) -> Iterator[bool]:
    """Temporarily use batched products for experts; yields True if that changes the model."""
    before = model.get_experts_implementation()
    model.set_experts_implementation(_BATCHED)
    try:
        yield model.get_experts_implementation() != before
    finally:
        model.set_experts_implementation(before)


def remedy(model: object, is_exact: Callable[[], bool]) -> str:
    """Return a remedy for a model that isn't bit-exact, as the end of a message; "" if batched experts don't help."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "set_experts_implementation"):
        return ""
    if is_sharded(model):  # other ranks' experts wouldn't change
        return ""
    try:
        with batched_experts(model) as is_changed:
            helps = is_changed and is_exact()
    except Exception:  # third-party modelling code, which may not run with batched experts
        return ""
    return f"; model.set_experts_implementation({_BATCHED!r}) helps" if helps else ""
