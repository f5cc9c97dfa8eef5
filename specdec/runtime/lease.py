"""The lease of a model's weights: all generators of a model share one packing, which the last release undoes."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

import torch

from specdec.errors import RequestError
from specdec.models.notes import notes_of
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import is_hooked_part
from specdec.models.weights.pack_model import Weights, packings
from specdec.models.weights.packing import packed_weights, unpack

_WHERE = "_specdec_packing"


@dataclass(frozen=True, slots=True)
class _Packing:
    """The packing of a model's weights, stored on the model, and its leases."""

    weights: Weights
    holders: "WeakSet[WeightsLease]"

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model has no packing."""
        return type(None), ()


def _packing_of(model: object) -> _Packing | None:
    return getattr(model, "__dict__", {}).get(_WHERE)


def kernel_of(model: object) -> str:
    """Return the name of the kernel by which a model's weights are packed now; "" if they aren't packed."""
    packing = _packing_of(model)
    return "" if packing is None else packing.weights.kernel


class WeightsLease:
    """One user's lease of a model's weights: a generator's of its model's, or a strategy's of its draft model's.

    Models are changed in place. A model has one packing, which stays until the last lease is released.

    Args:
        requested: a mode, or a kernel's name.
        kernels: the installed ones by name.
    """

    def __init__(self, requested: str, kernels: Mapping[str, Kernel]) -> None:
        self._requested, self._kernels = requested, kernels
        self._model: torch.nn.Module | None = None

    def layouts(self, model: torch.nn.Module, failed: Mapping[str, str]) -> Iterator[Weights]:
        """Pack a model's weights in one way after another; in one way only if another lease holds the model.

        Args:
            failed: by kernel, why the layouts so far have failed; read when the next one is requested.

        Raises:
            ModelError: if "packed" or a kernel was requested and no kernel is suitable.
            RequestError: if another lease holds the weights in another form than requested.
        """
        found = packings(model, self._requested, self._kernels, failed)
        with _alone(model):
            weights = self._shared(model) or self._next(model, found)
        while weights is not None:
            yield weights
            with _alone(model):
                weights = None if self._has_others(model) else self._next(model, found)

    def acquire(self, model: torch.nn.Module) -> Weights:
        """Pack a model's weights in the first way, or hold them as they are packed; see ``layouts``."""
        return next(self.layouts(model, {}))

    def acquire_draft(self, model: torch.nn.Module) -> Callable[[], None]:
        """Pack a draft model's weights unless they are packed already; return a function that releases them."""
        lease = WeightsLease("stock" if self._requested == "stock" else "auto", self._kernels)
        if isinstance(model, torch.nn.Module):
            with _alone(model):
                if packing := _packing_of(model):
                    lease._hold(model, packing)
                else:
                    lease.acquire(model)
        return lease.release

    def release(self) -> None:
        """Release the model; weights without another lease become ordinary parameters again."""
        model, self._model = self._model, None
        if model is not None:
            with _alone(model):
                packing = _packing_of(model)
                if packing is not None:
                    packing.holders.discard(self)
                    if not packing.holders:
                        _restore(model)

    def _shared(self, model: torch.nn.Module) -> Weights | None:
        """Hold the packing that a model has, if it is intact and as requested; a stock one only along with others."""
        packing = _packing_of(model)
        if packing is None or not _is_intact(model, packing.weights):
            return None
        has_others = self._has_others(model)
        if _is_served_by(self._requested, packing.weights):
            return self._hold(model, packing) if has_others or packing.weights.kernel else None
        if has_others:
            gc.collect()  # a generator that was dropped, not closed, may be in a cycle
        if self._has_others(model):
            raise RequestError(
                f"weights={self._requested!r} is unavailable while another generator of this model has them "
                f"{packing.weights}: close() that one (custom_generate's by specdec.in_transformers.release(model)) "
                "or give each a model of its own"
            )
        return None

    def _next(self, model: torch.nn.Module, found: Iterator[Weights]) -> Weights | None:
        """Pack a model in the next way, or return None; leases of a packing that isn't intact hold the new one."""
        packing = _packing_of(model)
        holders = packing.holders if packing else WeakSet[WeightsLease]()
        _restore(model)
        weights = next(found, None)
        return None if weights is None else self._hold(model, _Packing(weights, holders))

    def _has_others(self, model: torch.nn.Module) -> bool:
        packing = _packing_of(model)
        return packing is not None and any(holder is not self for holder in packing.holders)

    def _hold(self, model: torch.nn.Module, packing: _Packing) -> Weights:
        if self._model is not model:
            self.release()
        packing.holders.add(self)
        vars(model)[_WHERE], self._model = packing, model
        return packing.weights


@contextmanager
def _alone(model: torch.nn.Module) -> Iterator[None]:
    """Hold the model's lock and leave inference mode, whose tensors can't be trained."""
    with notes_of(model).lock, torch.inference_mode(False), torch.no_grad():
        yield


def _restore(model: torch.nn.Module) -> None:
    """Make a model's weights ordinary parameters again; also for a copy of a packed model."""
    unpack(model)
    vars(model).pop(_WHERE, None)


def _is_served_by(requested: str, weights: Weights) -> bool:
    if weights.lossy:
        return requested == weights.kernel
    if requested in {"packed", "stock"}:
        return bool(weights.kernel) == (requested == "packed")
    return requested in {"auto", weights.kernel}


def _is_intact(model: torch.nn.Module, weights: Weights) -> bool:
    """Return True if no packed weight has been replaced, cast, moved or hooked; always for a stock model."""
    if not weights.kernel:
        return True
    return len(packed_weights(model)) == weights.num_packed and not any(map(is_hooked_part, model.modules()))
