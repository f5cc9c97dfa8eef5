"""The weights that a generator holds: packed where that is faster, shared with others of the model, and given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch

from specdec.errors import ModelError, RequestError
from specdec.machine import processor_name
from specdec.probes.findings import notes_of
from specdec.weights.base import Kernel
from specdec.weights.choice import choose, grouped
from specdec.weights.layers import ProductLayer, given_the_same_rows, product_layers
from specdec.weights.packing import pack, packed_weights, unpack
from specdec.weights.tensor import PackedWeight

_QUIET_SECONDS = 2.0
_LEAST_BYTES = 2**23  # smaller models stay in a processor's caches, where the layout is of no account
_WHERE = "_specdec_packing"


@dataclass(frozen=True, slots=True)
class Weights:
    """How a model's weight matrices lie in memory.

    Attributes:
        kernel: the name of the kernel that multiplies by those that are packed; "" where none are.
        num_packed, num_layers: of the layers that are plain products, those that are packed, and all.
        twice: bytes that are held twice, since rows of a packed matrix are looked up as well.
        loss: the largest difference between a weight and what is multiplied in its place.
        why: the reason why they aren't packed, or "".
    """

    kernel: str = ""
    num_packed: int = 0
    num_layers: int = 0
    twice: int = 0
    loss: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        if not self.kernel:
            return f"stock: {self.why}"
        parts = [f"packed by {self.kernel}: {self.num_packed} of {self.num_layers} matrices"]
        parts += [f"{self.twice / 2**20:.0f} MiB held twice, as embeddings"] if self.twice else []
        parts += [f"numbers off by {self.loss:.1g} at most"] if self.loss else []
        return ", ".join(parts)


@dataclass(slots=True)
class _Packing:
    """A model's packing, kept with the model, and the generators that decode with it."""

    weights: Weights
    hook: torch.utils.hooks.RemovableHandle
    holders: "WeakSet[Any]" = field(default_factory=WeakSet)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model is nobody's yet."""
        return type(None), ()


class Holding:
    """The weights that one generator decodes with: its target's, and its draft models'.

    Models are changed in place. A model's weights stay packed until the last generator that holds them gives them back,
    or is no more.

    Args:
        requested: a mode, or a kernel's name.
        kernels: the installed ones by name.
    """

    def __init__(self, requested: str, kernels: Mapping[str, Kernel]) -> None:
        self._requested, self._kernels = requested, kernels
        self._models: list[torch.nn.Module] = []

    def lay_out(self, model: torch.nn.Module, requested: str | None = None) -> Weights:
        """Pack a target's weights, or leave them, as asked for; the model is left whole whatever happens.

        Raises:
            ModelError: where "packed" or a kernel was asked for and no kernel serves.
            RequestError: where another generator has the weights laid out otherwise.
        """
        requested = self._requested if requested is None else requested
        with notes_of(model).lock:
            packing: _Packing | None = vars(model).get(_WHERE)
            others = [other for other in packing.holders if other is not self] if packing else []
            if packing is not None and _still_holds(model, packing.weights) and (others or packing.weights.kernel):
                if not _contradicts(requested, packing.weights):
                    return self._hold(model, packing)
                if others:
                    raise RequestError(
                        f"weights={requested!r} can't be had while another generator of this model has them "
                        f"{packing.weights}: close() that one, or give each a model of its own"
                    )
            _restore(model)
            weights = _laid_out(model, requested, self._kernels)
            packing = _Packing(weights, model.register_state_dict_post_hook(_make_dense))  # type: ignore[no-untyped-call]  # torch's
            packing.holders.update(others)
            vars(model)[_WHERE] = packing
            return self._hold(model, packing)

    def lay_out_draft(self, model: Any) -> None:
        """Do the same for a draft model, unless it is laid out already or made of the target's own layers."""
        if isinstance(model, torch.nn.Module) and vars(model).get(_WHERE) is None:
            self.lay_out(model, "stock" if self._requested == "stock" else "auto")

    def give_back(self) -> None:
        """Give all of it back; weights that nobody else holds are ordinary parameters again."""
        for model in self._models:
            packing: _Packing | None = vars(model).get(_WHERE)
            if packing is not None:
                packing.holders.discard(self)
                if not packing.holders:
                    _restore(model)
        self._models.clear()

    def _hold(self, model: torch.nn.Module, packing: _Packing) -> Weights:
        packing.holders.add(self)
        if not any(model is held for held in self._models):
            self._models.append(model)
        return packing.weights


def _restore(model: torch.nn.Module) -> None:
    """Make a model's weights ordinary parameters, those of a copy of a packed model as well."""
    with notes_of(model).lock:
        packing: _Packing | None = vars(model).pop(_WHERE, None)
        if packing is not None:
            packing.hook.remove()
        unpack(model)


def _still_holds(model: torch.nn.Module, weights: Weights) -> bool:
    """True while nobody has replaced, cast or moved what was packed; a stock model always is what it was."""
    return not weights.kernel or len(packed_weights(model)) == weights.num_packed


def _contradicts(requested: str, weights: Weights) -> bool:
    if requested in {"packed", "stock"}:
        return bool(weights.kernel) == (requested == "stock")
    return requested not in {"auto", weights.kernel}


def _laid_out(model: torch.nn.Module, requested: str, kernels: Mapping[str, Kernel]) -> Weights:
    layers = list(product_layers(model))
    if requested == "stock":
        return Weights(num_layers=len(layers), why="asked for")
    layers = [layer for layer in layers if layer.weight.device.type != "meta" and layer.weight.grad is None]
    if not layers:
        return left_stock(requested, 0, "the model has no layers that are plain products")
    if requested == "auto" and sum(layer.weight.nbytes for layer in layers) < _LEAST_BYTES:
        return left_stock(requested, len(layers), "the model is so small that it stays in the processor's caches")
    # What is an exception among the layers, such as a router in float32, stays as it is.
    dtype = max({layer.weight.dtype for layer in layers}, key=lambda each: sum(_sizes(layers, each)))
    layers = [layer for layer in layers if layer.weight.dtype == dtype]
    reasons = {
        name: kernel.why_not(dtype, layers[0].weight.device) or _why_not_this(kernel, layers[0])
        for name, kernel in kernels.items()
        if requested in {"auto", "packed", name}
    }
    serving = {name: kernels[name] for name, why in reasons.items() if not why}
    if not serving:
        why = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "no kernel is installed"
        return left_stock(requested, len(layers), why, layers[0])
    return _packed_by(model, layers, serving, requested)


def _packed_by(
    model: torch.nn.Module, layers: Sequence[ProductLayer], kernels: Mapping[str, Kernel], requested: str
) -> Weights:
    """Pack by the fastest of the kernels that serve, unless stock products are faster and "auto" was asked for."""
    groups = given_the_same_rows(model, [layer for layer in layers if not (layer.is_looked_up or layer.is_transposed)])
    groups = [group for group in groups if len({layer.bias is None for layer in group}) == 1]
    chosen = choose(layers, groups, kernels, requested == "auto")
    if not chosen.name:
        return left_stock(requested, len(layers), f"faster here than {' and '.join(kernels)}", layers[0])
    kernel = kernels[chosen.name]
    _pack(model, kernel, grouped(layers, groups, chosen.joins), dict(chosen.row_multiples))
    packed = packed_weights(model)
    if not packed:
        return left_stock(requested, len(layers), f"{chosen.name} can hold none of its matrices", layers[0])
    twice = sum(layer.weight.nbytes for layer in layers if layer.is_looked_up)
    return Weights(chosen.name, len(packed), len(layers), twice, _loss(kernel, layers[0].weight.dtype))


def _pack(
    model: torch.nn.Module,
    kernel: Kernel,
    groups: Sequence[Sequence[ProductLayer]],
    row_multiples: Mapping[tuple[int, int], int],
) -> None:
    from transformers.utils.logging import tqdm

    progress = tqdm(total=len(groups), desc="packing weights", delay=_QUIET_SECONDS, leave=False)
    try:
        pack(kernel, groups, row_multiples, progress.update)
    except BaseException:  # Ctrl-C too
        unpack(model)
        raise
    finally:
        progress.close()


def left_stock(requested: str, num_layers: int, why: str, layer: ProductLayer | None = None) -> Weights:
    """Return the weights as they are, with the reason.

    Raises:
        ModelError: where "packed" or a kernel was asked for.
    """
    if requested not in {"auto", "stock"}:
        where = "" if layer is None else f" on {processor_name()} for {layer.name} in {_name(layer.weight.dtype)}"
        raise ModelError(f"weights={requested!r} can't be had{where}: {why}; use weights='auto' or 'stock'")
    return Weights(num_layers=num_layers, why=why)


def _sizes(layers: Sequence[ProductLayer], dtype: torch.dtype) -> list[int]:
    return [layer.weight.numel() for layer in layers if layer.weight.dtype == dtype]


def _why_not_this(kernel: Kernel, layer: ProductLayer) -> str:
    """Return why a kernel that serves the dtype doesn't serve a layer, or ""."""
    if kernel.pack(layer.matrix[:1]) is None:
        return f"{layer.name} has numbers in {_name(layer.weight.dtype)} that it doesn't"
    return ""


def _loss(kernel: Kernel, dtype: torch.dtype) -> float:
    return kernel.loss if dtype == torch.bfloat16 else 0.0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _make_dense(model: torch.nn.Module, state_dict: dict[str, Any], prefix: str, metadata: object) -> None:
    """Make what ``state_dict`` gives ordinary tensors; parameters, asked for by ``keep_vars``, stay what they are."""
    for name, value in state_dict.items():
        if isinstance(value, PackedWeight) and not isinstance(value, torch.nn.Parameter):
            state_dict[name] = value.unpacked()
