"""Packs a model's weights by the first suitable kernel, or leaves them stock with the reason."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from specdec.errors import ModelError, in_one_line, is_out_of_memory
from specdec.machine.facts import processor_name
from specdec.models.weights.base import Kernel
from specdec.models.weights.layers import (
    ProductLayer,
    given_the_same_rows,
    is_quantised,
    is_sharded,
    product_layers,
)
from specdec.models.weights.packing import pack, packed_weights, unpack
from specdec.models.weights.row_independence import RowMultiples

_QUIET_SECONDS = 2.0
_NO_LAYERS = "the model has no linear layers of plain numbers"
_LEAST_BYTES = 2**23  # smaller models stay in the processor's caches, where the layout doesn't matter


@dataclass(frozen=True, slots=True)
class Weights:
    """A report on the storage of a model's weight matrices.

    Attributes:
        kernel: the name of the packed matrices' kernel; "" if none are packed.
        num_packed, num_layers: numbers of packed and of all linear layers.
        twice: bytes stored twice: of matrices that are also embeddings, and of all matrices if the kernel is lossy.
        lossy: what is rounded, or "".
        loss: the largest difference between a weight and the number that is multiplied instead.
        why: why the weights aren't packed, or not by the preferred kernel, or "".
        is_fallback: True if the weights are stock because each kernel for the dtype and device has failed.
        num_quantised: number of quantised linear layers, which stay unchanged and aren't counted in ``num_layers``.
        engine: the name of the backend that runs the model.
        runs_layers: True if the backend runs torch's layers, False if it has a copy of the weights of its own.
    """

    kernel: str = ""
    num_packed: int = 0
    num_layers: int = 0
    twice: int = 0
    loss: float = 0.0
    why: str = ""
    is_fallback: bool = False
    num_quantised: int = 0
    lossy: str = ""
    engine: str = "hf"
    runs_layers: bool = True

    def __str__(self) -> str:
        if not self.kernel:
            return f"stock: {self.why}"
        num_linear = self.num_layers + self.num_quantised
        parts = [f"packed by {self.kernel}: {self.num_packed} of {num_linear} linear layers"]
        parts += [f"{self.num_quantised} are quantised and stay unchanged"] if self.num_quantised else []
        parts += [f"lossy, as {self.lossy}"] if self.lossy else []
        twice = "stored twice, to be restored" if self.lossy else "of embeddings stored twice"
        parts += [f"{self.twice / 2**20:.0f} MiB {twice}"] if self.twice else []
        parts += [f"numbers off by {self.loss:.1g} at most"] if self.loss else []
        return ", ".join([*parts, *([self.why] if self.why else [])])


def packings(
    model: torch.nn.Module, requested: str, kernels: Mapping[str, Kernel], failed: Mapping[str, str]
) -> Iterator[Weights]:
    """Pack a model's weights in place by one kernel after another, the preferred one first; at last, leave them stock.

    A packing is undone when the next one is requested. After an error, the model is unpacked.

    Args:
        requested: a mode or a kernel's name.
        failed: by name, why kernels that can pack the weights aren't suitable; the last one when the next is requested.

    Raises:
        ModelError: if "packed" or a kernel was requested, and no kernel can pack the weights.
    """
    if any(map(is_quantised, model.modules())):
        _runs(model)  # some layers are rebuilt in the first pass, which must not happen in inference mode
    num_quantised = sum(map(is_quantised, model.modules()))
    layers = list(product_layers(model))
    if reason := _why_stock(model, layers, requested, num_quantised):
        yield replace(stock_or_refuse(requested, len(layers), reason), num_quantised=num_quantised)
        return
    own = _of_one_kind(layers)
    packer, unsupported, faults = _Packer(model, own), dict[str, str](), dict[str, str]()
    for name, kernel in _in_order(kernels, requested, own[0].weight.dtype):
        if reason := packer.why_not(kernel):
            unsupported[name] = reason
        elif reason := failed.get(name) or packer.why_not_packed(kernel):
            faults[name] = reason
        else:
            why = "; ".join(f"not by {other}: {fault}" for other, fault in faults.items())
            yield replace(packer.packed_by(name, kernel), num_quantised=num_quantised, why=why)
            unpack(model)
            faults[name] = failed.get(name, "")
    if requested == "auto" or not failed:
        reasons = [f"{name}: {reason}" for name, reason in {**unsupported, **faults}.items()]
        stock = stock_or_refuse(requested, len(own), "; ".join(reasons) or "no kernel is installed", own[0])
        yield replace(stock, num_quantised=num_quantised, is_fallback=bool(faults))


def _in_order(kernels: Mapping[str, Kernel], requested: str, dtype: torch.dtype) -> list[tuple[str, Kernel]]:
    """Return the requested kernels by rank: the one of a name, or all without losses."""
    is_open = requested in {"auto", "packed"}
    able = [each for each in kernels.items() if requested == each[0] or (is_open and not each[1].lossy)]
    return sorted(able, key=lambda each: (each[1].rank(dtype), each[0]))


def _why_stock(model: torch.nn.Module, layers: Sequence[ProductLayer], requested: str, num_quantised: int) -> str:
    """Return why no kernel is tried, or ""."""
    if is_sharded(model):
        return "its matrices are sharded over processes"
    if requested == "stock":
        return "asked for"
    if not layers:
        return f"its {num_quantised} linear layers are quantised" if num_quantised else _NO_LAYERS
    free = [layer.weight for layer in layers if layer.weight.grad is None]
    if not free:
        return "the weights have gradients, which are in use"
    if requested == "auto" and sum(weight.nbytes for weight in free) < _LEAST_BYTES:
        what = "what isn't quantised" if num_quantised else "the model"
        return f"{what} is so small that it stays in the processor's caches"
    return ""


def _of_one_kind(layers: Sequence[ProductLayer]) -> list[ProductLayer]:
    """Return the layers to pack: those of a rarer dtype or device, such as a router in float32, stay stock."""
    kinds: dict[tuple[torch.dtype, torch.device], list[ProductLayer]] = {}
    for layer in layers:
        if layer.weight.grad is None:
            kinds.setdefault((layer.weight.dtype, layer.weight.device), []).append(layer)
    return max(kinds.values(), key=lambda own: sum(layer.weight.numel() for layer in own))


class _Packer:
    """Packs a model's layers of one dtype and device."""

    def __init__(self, model: torch.nn.Module, layers: Sequence[ProductLayer]) -> None:
        self._model, self._layers = model, layers
        self._dtype, self._device = layers[0].weight.dtype, layers[0].weight.device
        self._groups: Sequence[Sequence[ProductLayer]] | None = None  # to multiply as one, once they are known

    def why_not(self, kernel: Kernel) -> str:
        """Return why a kernel doesn't support the layers, or ""."""
        if reason := kernel.why_not(self._dtype, self._device):
            return reason
        unable = (layer for layer in self._layers if not kernel.holds(layer.matrix))
        return next((f"{layer.name} has numbers in {_name(self._dtype)} that it doesn't" for layer in unable), "")

    def why_not_packed(self, kernel: Kernel) -> str:
        """Pack the layers; return why the kernel can't, or "". The model is unpacked then, and after any error."""
        try:
            if fault := _fault_of(kernel, self._layers[0]):
                return fault
            if self._groups is None:
                self._groups = _joinable(self._model, self._layers)
            self._pack(kernel, self._groups)
            if self._groups and not _runs(self._model):  # its code may require a contiguous product, for example
                unpack(self._model)
                self._groups = []
                self._pack(kernel, self._groups)
        except BaseException as error:  # a third party's code, and torch's private operations; Ctrl-C too
            unpack(self._model)
            if not isinstance(error, Exception):
                raise
            return "memory ran out while packing" if is_out_of_memory(error) else f"it raised {in_one_line(error)}"
        return "" if packed_weights(self._model) else "its parameters are in use elsewhere"

    def _pack(self, kernel: Kernel, groups: Sequence[Sequence[ProductLayer]]) -> None:
        from transformers.utils.logging import tqdm

        joined = {layer.name for group in groups for layer in group}
        together = [*groups, *([layer] for layer in self._layers if layer.name not in joined)]
        with tqdm(total=len(together), desc="packing weights", delay=_QUIET_SECONDS, leave=False) as progress:
            pack(kernel, together, RowMultiples(kernel).of, progress.update)

    def packed_by(self, name: str, kernel: Kernel) -> Weights:
        """Return a report on the layers, which a kernel has packed."""
        packed = packed_weights(self._model)
        used = {id(weight) for weight in packed}
        held = [layer for layer in self._layers if id(layer.weight) in used]
        return Weights(
            kernel=name,
            num_packed=len(packed),
            num_layers=len(self._layers),
            twice=sum(layer.weight.nbytes * (layer.is_looked_up + bool(kernel.lossy)) for layer in held),
            loss=kernel.loss(self._dtype),
            lossy=kernel.lossy,
        )


def _joinable(model: torch.nn.Module, layers: Sequence[ProductLayer]) -> list[list[ProductLayer]]:
    """Return the groups of layers that one product could replace; runs the model once."""
    groups = given_the_same_rows(model, [layer for layer in layers if not (layer.is_looked_up or layer.is_transposed)])
    return [group for group in groups if len({layer.bias is None for layer in group}) == 1]


def _runs(model: torch.nn.Module) -> bool:
    try:
        model(torch.ones(1, 2, dtype=torch.long, device=next(model.parameters()).device))
    except Exception:  # third-party modelling code
        return False
    return True


def stock_or_refuse(requested: str, num_layers: int, why: str, layer: ProductLayer | None = None) -> Weights:
    """Return stock weights with the reason.

    Raises:
        ModelError: if "packed" or a kernel was requested.
    """
    if requested not in {"auto", "stock"}:
        where = "" if layer is None else f" on {processor_name()} for {layer.name} in {_name(layer.weight.dtype)}"
        raise ModelError(f"weights={requested!r} is unavailable{where}: {why}; use weights='auto' or 'stock'")
    return Weights(num_layers=num_layers, why=why)


def _fault_of(kernel: Kernel, layer: ProductLayer) -> str:
    """Return how a kernel computes a layer's product wrongly, or ""."""
    matrix = layer.matrix
    rows = torch.linspace(-1.0, 1.0, 3 * matrix.shape[1]).view(3, -1).to(matrix.dtype)
    packed = kernel.pack(matrix)
    product, unpacked = kernel.multiply(rows, packed, None), kernel.unpack(packed)
    expected, allowed = rows.double() @ matrix.double().T, kernel.largest_error(rows, matrix)
    if product.shape != expected.shape or not bool(((product.double() - expected).abs() <= allowed).all()):
        return f"its product with {layer.name} is wrong"
    return "" if torch.equal(unpacked, matrix) else f"it doesn't unpack {layer.name} to the same bits"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
