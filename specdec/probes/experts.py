"""Experts as batched products: what may help mixtures whose rows have other bits in other company, tried at once.

The usual products give each expert the rows that chose it, often so few that libraries take another way; batched ones
give each row products of its own. Modelling code that has neither, or rounds elsewhere too, isn't helped.
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
    """Return a remedy for a model whose bits deviate, as the end of a message; "" where batched experts deviate too."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "set_experts_implementation"):
        return ""
    if is_sharded(model):  # other ranks' experts would stay as they are
        return ""
    try:
        with batched_experts(model) as is_changed:
            helps = is_changed and is_exact()
    except Exception:  # third-party modelling code: a model that batched experts break is not helped by them
        return ""
    return f"; model.set_experts_implementation({_BATCHED!r}) helps" if helps else ""
