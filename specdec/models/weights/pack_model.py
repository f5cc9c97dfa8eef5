"""Packs a model's weights by the fastest suitable kernel, or leaves them stock with the reason."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from specdec.errors import ModelError, in_one_line, is_out_of_memory
from specdec.machine.facts import processor_name
from specdec.models.weights.base import Kernel
from specdec.models.weights.choice import KernelChoice, choose, grouped
from specdec.models.weights.contest import num_shapes
from specdec.models.weights.layers import ProductLayer, given_the_same_rows, is_quantised, is_sharded, product_layers
from specdec.models.weights.packing import pack, packed_weights, unpack

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
        why: why the weights aren't packed, or not by the fastest kernel, or "".
        tried: the kernels that support the model's dtype and device, if none is used.
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
    tried: tuple[str, ...] = ()
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

    @property
    def is_worth_a_note(self) -> bool:
        """True if weights are packed or a kernel was measured, so that a note is useful."""
        return bool(self.kernel or self.tried)


def pack_model(model: torch.nn.Module, requested: str, kernels: Mapping[str, Kernel], why: str) -> Weights:
    """Pack a model's weights in place, or leave them stock; after an error, the model is unpacked.

    Args:
        requested: a mode or a kernel's name.
        why: why some installed kernels are excluded, or "".

    Raises:
        ModelError: where "packed" or a kernel was requested and no kernel serves, or memory runs out.
    """
    if any(map(is_quantised, model.modules())):
        _runs(model)  # some layers are rebuilt in the first pass, which must not happen in inference mode
    num_quantised = sum(map(is_quantised, model.modules()))
    layers = list(product_layers(model))
    if reason := _why_stock(model, layers, requested, num_quantised):
        weights = stock_or_refuse(requested, len(layers), reason)
    else:
        weights = _Packer(model, _of_one_kind(layers), requested, kernels, why).pack()
    return replace(weights, num_quantised=num_quantised)


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
    """Packs a model's layers of one dtype and device, or leaves them stock.

    Args:
        layers: of the model.
        requested, kernels, why: as for ``pack_model``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Sequence[ProductLayer],
        requested: str,
        kernels: Mapping[str, Kernel],
        why: str,
    ) -> None:
        self.model, self.layers, self.requested, self.why = model, layers, requested, why
        dtype, device = layers[0].weight.dtype, layers[0].weight.device
        is_open = requested in {"auto", "packed"}
        asked = {name: each for name, each in kernels.items() if requested == name or (is_open and not each.lossy)}
        # Against kernels, by name.
        self.reasons = {name: reason for name, kernel in asked.items() if (reason := kernel.why_not(dtype, device))}
        self.kernels = {name: kernel for name, kernel in asked.items() if name not in self.reasons}

    def pack(self) -> Weights:
        """Pack by the fastest suitable kernel, unless stock products are faster and "auto" was requested."""
        try:
            return self._packed()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return self._stock("memory ran out while packing")

    def _stock(self, *faults: str) -> Weights:
        reason = "; ".join(filter(None, [self.why, *faults])) or "no kernel is installed"
        weights = stock_or_refuse(self.requested, len(self.layers), reason, self.layers[0])
        return replace(weights, tried=tuple(self.kernels))

    def _packed(self) -> Weights:
        groups, serving = _joinable(self.model, self.layers) if self.kernels else [], dict(self.kernels)
        while serving:
            with _progress("choosing a kernel", num_shapes(self.layers)) as on_shape:
                chosen = choose(self.layers, groups, serving, self.requested == "auto", on_shape=on_shape)
            if not chosen.name:
                return self._stock(f"faster here than {' and '.join(serving)}")
            kernel = serving.pop(chosen.name)
            if not (reason := _why_not_these(kernel, self.layers)):
                return self._packed_by(kernel, chosen, groups)
            self.reasons[chosen.name] = reason
        return self._stock(*(f"{name}: {reason}" for name, reason in self.reasons.items()))

    def _packed_by(self, kernel: Kernel, chosen: KernelChoice, groups: Sequence[Sequence[ProductLayer]]) -> Weights:
        """Pack by the chosen kernel; products are joined only if the model runs with them."""
        model, layers = self.model, self.layers
        _pack(model, kernel, grouped(layers, groups, chosen.joins), dict(chosen.row_multiples))
        if chosen.joins and not _runs(model):  # its code may require a contiguous product, for example
            unpack(model)
            _pack(model, kernel, grouped(layers, groups, joins=False), {})
        packed = packed_weights(model)
        if not packed:
            return stock_or_refuse(self.requested, len(layers), "its parameters are in use elsewhere", layers[0])
        used = {id(weight) for weight in packed}
        held = [layer for layer in layers if id(layer.weight) in used]
        return Weights(
            kernel=chosen.name,
            num_packed=len(packed),
            num_layers=len(layers),
            twice=sum(layer.weight.nbytes * (layer.is_looked_up + bool(kernel.lossy)) for layer in held),
            loss=kernel.loss(layers[0].weight.dtype),
            why=self.why,
            lossy=kernel.lossy,
        )


def _joinable(model: torch.nn.Module, layers: Sequence[ProductLayer]) -> list[list[ProductLayer]]:
    """Return the groups of layers that one product could replace; runs the model once."""
    groups = given_the_same_rows(model, [layer for layer in layers if not (layer.is_looked_up or layer.is_transposed)])
    return [group for group in groups if len({layer.bias is None for layer in group}) == 1]


def _pack(
    model: torch.nn.Module,
    kernel: Kernel,
    groups: Sequence[Sequence[ProductLayer]],
    row_multiples: Mapping[tuple[int, int], int],
) -> None:
    try:
        with _progress("packing weights", len(groups)) as on_group:
            pack(kernel, groups, row_multiples, on_group)
    except BaseException:  # Ctrl-C too
        unpack(model)
        raise


@contextmanager
def _progress(task: str, total: int) -> Iterator[Callable[[], object]]:
    """Show a progress bar if the task takes long; yield a function to call after each part."""
    from transformers.utils.logging import tqdm

    with tqdm(total=total, desc=task, delay=_QUIET_SECONDS, leave=False) as progress:
        yield progress.update


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


def _why_not_these(kernel: Kernel, layers: Sequence[ProductLayer]) -> str:
    """Return why a kernel for the dtype isn't suitable for these layers, or ""; tests the first layer."""
    for layer in layers:
        if not kernel.holds(layer.matrix):
            return f"{layer.name} has numbers in {_name(layer.weight.dtype)} that it doesn't"
    matrix = layers[0].matrix
    rows = torch.linspace(-1.0, 1.0, 3 * matrix.shape[1]).view(3, -1).to(matrix.dtype)
    try:
        packed = kernel.pack(matrix)
        product, unpacked = kernel.multiply(rows, packed, None), kernel.unpack(packed)
    except Exception as error:  # third-party code, and torch's private operations
        return f"it raised {in_one_line(error)}"
    expected, allowed = rows.double() @ matrix.double().T, kernel.largest_error(rows, matrix)
    if product.shape != expected.shape or not bool(((product.double() - expected).abs() <= allowed).all()):
        return f"its product with {layers[0].name} is wrong"
    return "" if torch.equal(unpacked, matrix) else f"it doesn't unpack {layers[0].name} to the same bits"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
