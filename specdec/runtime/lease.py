"""The lease of a model's weights: all generators of a model share one packing, which the last release undoes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakSet

import torch

from specdec.errors import ModelError, RequestError
from specdec.models.notes import notes_of
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import is_hooked_part
from specdec.models.weights.pack_model import Weights, pack_model
from specdec.models.weights.packing import packed_weights, unpack

_WHERE = "_specdec_packing"


@dataclass(slots=True)
class _Packing:
    """The packing of a model's weights, stored on the model, and its leases."""

    weights: Weights
    holders: "WeakSet[WeightsLease]" = field(default_factory=WeakSet)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model has no packing."""
        return type(None), ()


def kernel_of(model: object) -> str:
    """Return the name of the kernel by which a model's weights are packed now; "" if they aren't packed."""
    packing: _Packing | None = getattr(model, "__dict__", {}).get(_WHERE)
    return "" if packing is None else packing.weights.kernel


class WeightsLease:
    """One generator's lease of the weights of its target and its draft models.

    Models are changed in place. A model's weights stay packed until the last lease is released.

    Args:
        requested: a mode, or a kernel's name.
        kernels: the installed ones by name.

    Attributes:
        is_decoding: True while the generator decodes, when no other lease may repack the weights.
    """

    def __init__(self, requested: str, kernels: Mapping[str, Kernel]) -> None:
        self.is_decoding = False
        self._requested, self._kernels = requested, kernels
        self._models: list[torch.nn.Module] = []  # the target once, a draft model for each strategy

    def acquire(
        self, model: torch.nn.Module, without: Collection[str] = (), why: str = "", requested: str = ""
    ) -> Weights:
        """Pack a target's weights, or leave them stock, as requested; after an error the model is unpacked.

        Args:
            without: kernels to exclude.
            why: the reason for excluding them.
            requested: overrides the lease's own request.

        Raises:
            ModelError: if "packed" or a kernel was requested and no kernel is suitable.
            RequestError: if another generator needs the weights in another form.
        """
        requested = requested or self._requested
        with _alone(model):
            packing: _Packing | None = vars(model).get(_WHERE)
            others = self._others(model)
            is_taken = any(other.is_decoding or other._requested != "auto" for other in others)
            if packing is not None and _is_intact(model, packing.weights) and (is_taken or packing.weights.kernel):
                if packing.weights.kernel not in without and _is_served_by(requested, packing.weights):
                    return self._hold(model, packing)
                if is_taken:
                    raise RequestError(
                        f"weights={requested!r} is unavailable while another generator of this model has them "
                        f"{packing.weights}: close() that one, or give each a model of its own"
                    )
            _restore(model)
            kernels = {name: kernel for name, kernel in self._kernels.items() if name not in without}
            packing = _Packing(pack_model(model, requested, kernels, why))
            packing.holders.update(others)
            vars(model)[_WHERE] = packing
            return self._hold(model, packing)

    def layouts(self, model: torch.nn.Module, failed: Mapping[str, str]) -> Iterator[Weights]:
        """Pack a target's weights by one kernel after another, the fastest first, without those that failed.

        Raises:
            ModelError: if "packed" or a kernel was requested and no kernel is suitable.
            RequestError: if another generator needs the weights in another form.
        """
        while True:
            why = "; ".join(f"not by {kernel}: {reason}" for kernel, reason in failed.items())
            try:
                weights = self.acquire(model, failed, why)
            except ModelError:
                if failed:
                    return
                raise
            yield weights
            if not weights.kernel or self._requested not in {"auto", "packed"} or self._others(model):
                return

    def acquire_draft(self, model: torch.nn.Module) -> Callable[[], None]:
        """Pack a draft model's weights unless they are packed already; return a function that releases them.

        A model made of the target's own layers shares the target's packing and isn't changed.
        """
        if not isinstance(model, torch.nn.Module):
            return lambda: None
        with _alone(model):
            packing: _Packing | None = vars(model).get(_WHERE)
            if packing is None:
                self.acquire(model, requested="stock" if self._requested == "stock" else "auto")
            elif self not in packing.holders:
                self._hold(model, packing)
            elif any(model is held for held in self._models):
                self._models.append(model)
            else:
                return lambda: None
        return lambda: self._give_back(model)

    def release_weights(self) -> None:
        """Release all models; weights without another lease become ordinary parameters again."""
        while self._models:
            self._give_back(self._models[-1])

    def _give_back(self, model: torch.nn.Module) -> None:
        """Release a model once; the lease ends after as many releases as acquisitions."""
        number = next((number for number, held in enumerate(self._models) if held is model), None)
        if number is None:  # all were released
            return
        del self._models[number]
        if any(model is held for held in self._models):
            return
        with _alone(model):
            packing: _Packing | None = vars(model).get(_WHERE)
            if packing is not None:
                packing.holders.discard(self)
                if not packing.holders:
                    _restore(model)

    def _others(self, model: torch.nn.Module) -> list["WeightsLease"]:
        packing: _Packing | None = vars(model).get(_WHERE)
        return [other for other in packing.holders if other is not self] if packing else []

    def _hold(self, model: torch.nn.Module, packing: _Packing) -> Weights:
        packing.holders.add(self)
        if not any(model is held for held in self._models):
            self._models.append(model)
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
