"""Facts that were found out about a model, kept with the model object, and the lock under which it runs."""

import threading
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, TypeVar

import torch

Finding = TypeVar("Finding")
_WHERE = "_specdec_notes"


class Notes:
    """Facts about one model object, and the lock that a thread holds while it runs the model.

    A pass sets the model's attention and puts it back, so two threads must not run one model at once. A copy of the
    model is another model: it starts with no facts and a lock of its own.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.facts: dict[Hashable, Any] = {}

    def __reduce__(self) -> tuple[type["Notes"], tuple[()]]:
        return Notes, ()


def notes_of(model: object) -> Notes:
    """Return the model's notes, made when first asked for."""
    notes: Notes = vars(model).setdefault(_WHERE, Notes())
    return notes


def lock_of(model: object) -> threading.RLock:
    """Return the lock to hold while the model runs."""
    return notes_of(model).lock


def state_of(model: object) -> Hashable:
    """Return what a model computes with: modules, their modes, dtypes, devices and shapes, and its configured kernels.

    Equal states mean that facts still hold. The values of weights are no part of it.
    """
    if not isinstance(model, torch.nn.Module):
        return ()
    modules = tuple((id(module), type(module), module.training) for module in model.modules())
    tensors = chain(model.parameters(), model.buffers())
    config = getattr(model, "config", None)
    kernels = tuple(str(getattr(config, name, "")) for name in ("_attn_implementation", "_experts_implementation"))
    return modules, tuple((tensor.dtype, tensor.device, tensor.shape) for tensor in tensors), kernels


def first_time(model: object, told: str) -> bool:
    """Return True once for a model and a text that its user is to be told."""
    notes = notes_of(model)
    with notes.lock:
        is_first = ("told", told) not in notes.facts
        notes.facts["told", told] = True
        return is_first


def remembered(model: object, question: Hashable, find: Callable[[], Finding]) -> Finding:
    """Return the answer to a question about a model in its present state, with torch's present number of threads."""
    notes = notes_of(model)
    with notes.lock:
        asked = question, state_of(model), torch.get_num_threads()
        if asked not in notes.facts:
            notes.facts[asked] = find()
        found: Finding = notes.facts[asked]
        return found
