"""Facts that were found out about a model, kept with the model object, and the lock under which it runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch

from specdec.weights.tensor import PackedWeight

Finding = TypeVar("Finding")
_WHERE = "_specdec_notes"
_MOST_STATES = 8  # the self-test hides layers and switches attention for a time, which are states of their own


class Notes:
    """Facts about one model object in its last few states, and the lock that a thread holds while it runs the model.

    A pass sets the model's attention and puts it back, so two threads must not run one model at once. A deep copy of
    the model starts with no facts and a lock of its own.
    """

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self.lock = lock or threading.RLock()
        self.told: set[str] = set()
        self.shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # by backends, while one holds it
        self._facts: OrderedDict[Hashable, dict[Hashable, Any]] = OrderedDict()

    def facts_in(self, state: Hashable) -> dict[Hashable, Any]:
        """Return what is known of a state, to be added to."""
        facts = self._facts.setdefault(state, {})
        self._facts.move_to_end(state)
        while len(self._facts) > _MOST_STATES:
            self._facts.popitem(last=False)
        return facts

    def __reduce__(self) -> tuple[type["Notes"], tuple[()]]:
        return Notes, ()


def notes_of(model: object) -> Notes:
    """Return the model's notes, made when first asked for; an object that can't carry any gets new ones each time."""
    held = getattr(model, "__dict__", None)
    notes: Notes = Notes() if held is None else held.setdefault(_WHERE, Notes())
    return notes


def share_lock(model: object, view: object) -> None:
    """Let a shallow copy of a model, which runs the same layers, have facts of its own under the model's lock."""
    vars(view)[_WHERE] = Notes(lock_of(model))


def lock_of(model: object) -> AbstractContextManager[Any]:
    """Return the lock to hold while the model runs."""
    return notes_of(model).lock


def state_of(model: object, sees_packing: bool = True) -> Hashable:
    """Return what a model computes with: modules, their modes, dtypes, devices and shapes, and its configuration.

    Equal states mean that facts still hold. The answer waits for the model's lock, since passes set the configured
    attention.

    Args:
        sees_packing: packed weights make another state, and other values of weights don't, as for whoever runs the
            model's layers. Of False it is the other way round, as for whoever has a copy of the weights.
    """
    if not isinstance(model, torch.nn.Module):
        return ()
    with lock_of(model):
        modules = tuple((id(module), type(module), module.training) for module in model.modules())
        describe = facts_of if sees_packing else _version_of
        tensors = tuple(map(describe, chain(model.parameters(), model.buffers())))
        return modules, tensors, str(vars(model.config)) if hasattr(model, "config") else ""


def facts_of(tensor: torch.Tensor) -> Hashable:
    """Return what products with a tensor depend on, besides its numbers."""
    if not isinstance(tensor, PackedWeight):
        return _plain_facts_of(tensor)
    return tensor.matrix.kind, tensor.plain_dtype, tensor.device, tensor.shape


def _plain_facts_of(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    dtype = tensor.plain_dtype if isinstance(tensor, PackedWeight) else tensor.dtype
    return dtype, tensor.device, tensor.shape


def _version_of(tensor: torch.Tensor) -> Hashable:
    """A tensor's numbers as far as they are known unread: the tensor that it is, and how often it was written to."""
    version = None if isinstance(tensor, PackedWeight) else (id(tensor), tensor._version)
    return *_plain_facts_of(tensor), version


def first_time(model: object, told: str) -> bool:
    """Return True once for a model and a text that its user is to be told."""
    notes = notes_of(model)
    with notes.lock:
        is_first = told not in notes.told
        notes.told.add(told)
        return is_first


def remembered(model: object, question: Hashable, find: Callable[[], Finding]) -> Finding:
    """Return the answer to a question about a model in its present state, with torch's present number of threads."""
    notes = notes_of(model)
    with notes.lock:
        state, asked = state_of(model), (question, torch.get_num_threads())
        known = notes.facts_in(state)
        if asked not in known:
            known[asked] = find()
        found: Finding = known[asked]
        return found
