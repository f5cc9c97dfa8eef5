"""Notes on a model object: facts cached for its last few states, and the lock to hold while it runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch

from specdec.models.weights.layers import is_hooked_part
from specdec.models.weights.tensor import PackedWeight

Finding = TypeVar("Finding")
_WHERE = "_specdec_notes"
_MOST_STATES = 8  # the self-test removes layers and switches attention, which are other states


class Notes:
    """Facts about one model object in its last few states, and the lock that a thread holds while it runs the model.

    A pass switches the model's attention and restores it, so two threads must not run one model at the same time. A
    deep copy of the model has no facts and its own lock.
    """

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self.lock = lock or threading.RLock()
        self.while_unchanging: dict[Hashable, Any] | None = None  # digests, while the model is unchanging
        self.shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # by backends, while one refers to it
        self.decoder_view: Any = None  # of an encoder-decoder model
        self._facts: OrderedDict[Hashable, dict[Hashable, Any]] = OrderedDict()

    def facts_in(self, state: Hashable) -> dict[Hashable, Any]:
        """Return the cached facts about a state, as a dictionary that callers may add to."""
        facts = self._facts.setdefault(state, {})
        self._facts.move_to_end(state)
        while len(self._facts) > _MOST_STATES:
            self._facts.popitem(last=False)
        return facts

    def __reduce__(self) -> tuple[type["Notes"], tuple[()]]:
        return Notes, ()


def notes_of(model: object) -> Notes:
    """Return the model's notes, made at the first call; for an object without attributes, at each call."""
    held = getattr(model, "__dict__", None)
    notes: Notes = Notes() if held is None else held.setdefault(_WHERE, Notes())
    return notes


def share_lock(model: object, view: object) -> None:
    """Give a shallow copy of a model, which runs the same layers, facts of its own and the model's lock."""
    vars(view)[_WHERE] = Notes(lock_of(model))


def lock_of(model: object) -> AbstractContextManager[Any]:
    """Return the lock to hold while the model runs."""
    return notes_of(model).lock


def state_of(model: object) -> Hashable:
    """Return what a model's passes depend on: modules, modes, dtypes, devices, shapes, kernels, configuration.

    While the state is equal, a generator's parts fit the model. Its numbers may still have changed, which
    ``fingerprint_of`` finds out. Waits for the model's lock, since passes switch the configured attention.
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
    """Return what products with a tensor depend on, except its numbers."""
    if not isinstance(tensor, PackedWeight):
        return tensor.dtype, tensor.device, tensor.shape
    return tensor.matrix.kind, tensor.plain_dtype, tensor.device, tensor.shape


def remembered(model: object, question: Hashable, find: Callable[[], Finding]) -> Finding:
    """Return a fact about a model; ``find`` is called once for the model's state and torch's number of threads.

    For facts that take seconds to find or depend on the model's numbers, use ``probes.findings.recalled``.
    """
    notes = notes_of(model)
    with notes.lock:
        state, key = state_of(model), (question, torch.get_num_threads())
        known = notes.facts_in(state)
        if key not in known:
            known[key] = find()
        found: Finding = known[key]
        return found
