"""Facts that were found out about a model, kept with the model object, and the lock under which it runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch

from specdec.weights.layers import is_hooked_part
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
        self.fingerprints: dict[Hashable, Any] | None = None  # by structure, while the model is unchanging
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


def state_of(model: object) -> Hashable:
    """Return what a model's passes are laid out for: modules, modes, dtypes, devices, shapes, kernels, configuration.

    Equal states mean that a generator's parts still fit the model. What it computes may have changed all the same, as
    numbers may: ``fingerprint_of`` tells. The answer waits for the model's lock, since passes set the configured
    attention.
    """
    if not isinstance(model, torch.nn.Module):
        return ()
    with lock_of(model):
        modules = tuple(
            (id(module), type(module), module.training, is_hooked_part(module)) for module in model.modules()
        )
        tensors = tuple(map(facts_of, chain(model.parameters(), model.buffers())))
        return modules, tensors, str(vars(model.config)) if hasattr(model, "config") else ""


def facts_of(tensor: torch.Tensor) -> Hashable:
    """Return what products with a tensor depend on, besides its numbers."""
    if not isinstance(tensor, PackedWeight):
        return tensor.dtype, tensor.device, tensor.shape
    return tensor.matrix.kind, tensor.plain_dtype, tensor.device, tensor.shape


def first_time(model: object, told: str) -> bool:
    """Return True once for a model and a text that its user is to be told."""
    notes = notes_of(model)
    with notes.lock:
        is_first = told not in notes.told
        notes.told.add(told)
        return is_first


def remembered(model: object, question: Hashable, find: Callable[[], Finding]) -> Finding:
    """Return the answer to a cheap question about a model, found once for its state and torch's number of threads.

    ``recalled`` is for what takes a while, and depends on the model's numbers.
    """
    notes = notes_of(model)
    with notes.lock:
        state, asked = state_of(model), (question, torch.get_num_threads())
        known = notes.facts_in(state)
        if asked not in known:
            known[asked] = find()
        found: Finding = known[asked]
        return found
