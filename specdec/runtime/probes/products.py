"""Row independence: whether a row of a layer has the same bits with any number of other rows.

Libraries use other kernels for few rows: on CPUs, one to three rows of a float32 product commonly differ from the same
rows among more, and with several threads up to eleven. Padding to a multiple helps, and this probe finds the multiple.
Activations are tested too, because the last few numbers of a tensor, or of one thread's share, are computed in another
way, and norms, whose sums torch divides among a GPU's threads by how many there are.
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from specdec.errors import in_one_line, is_out_of_memory
from specdec.models.gradients import runs_in_inference_mode, without_gradients
from specdec.models.modalities import modalities_of
from specdec.models.notes import facts_of
from specdec.models.weights.layers import is_quantised, is_sharded_tensor, rounds_rows
from specdec.models.weights.row_independence import NUM_TRIED, PRODUCT, RowFunction, most_rows
from specdec.models.weights.tensor import PackedWeight

_ACTIVATIONS = tuple(made[0] if isinstance(made, tuple) else made for made in ACT2CLS.values())


@dataclass(frozen=True, slots=True)
class Products:
    """The multiple of rows in which all products are independent, tested up to ``most_rows`` rows.

    Attributes:
        inexact: why there is no such multiple, or "".
    """

    row_multiple: int
    most_rows: int
    inexact: str = ""


def probe_products(
    model: PreTrainedModel, seconds: float, operations: AbstractContextManager[object] | None = None
) -> Products:
    """Test every shape of layer in the model; called at load for exact numerics.

    Args:
        seconds: few mean fewer rows.
        operations: the context in which the layers run.
    """
    try:
        with without_gradients(runs_in_inference_mode(model)), operations or nullcontext():
            return _probe(model, seconds)
    except Exception as error:  # a third party's layers
        if is_out_of_memory(error) and model.device.type == "cpu":
            raise
        return Products(
            1, most_rows(False, model.device), f"its layers can't be tested one by one: {in_one_line(error)}"
        )


def _probe(model: PreTrainedModel, seconds: float) -> Products:
    if model.device.type != "cpu" and (name := _untested(model)):
        return Products(1, most_rows(False, model.device), f"rows of {name} can't be tested on their own")
    layers = list(_distinct(model))
    is_quick = seconds > NUM_TRIED * _seconds_of_a_pass([layer for _, layer in layers])
    multiple = 1
    for name, layer in layers:
        found = layer.multiple(is_quick, multiple)
        if found is None:
            return Products(1, most_rows(is_quick, model.device), f"a row of {name} depends on the number of rows")
        multiple = found
    return Products(multiple, most_rows(is_quick, model.device))


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules that decoding runs, with their names: without towers for images and audio."""
    if not modalities_of(model):
        yield from model.named_modules()
        return
    own = {*model.get_decoder().modules(), *model.get_output_embeddings().modules()}
    yield from ((name, module) for name, module in model.named_modules() if module in own)


def _distinct(model: PreTrainedModel) -> Iterator[tuple[str, RowFunction]]:
    """Yield one layer of each kind and shape, with a name for messages; activations get the widest product's width."""
    seen = set[Hashable]()
    activations: dict[type, torch.nn.Module] = {}
    widest, common = 0, (model.dtype, model.device)
    for _, module in _layers(model):
        if isinstance(module, _ACTIVATIONS):
            activations.setdefault(type(module), module)
        if callable(row_functions := getattr(module, "row_functions", None)):
            yield from row_functions()
        kind = _kind_of(module)
        if kind is None or kind in seen:
            continue
        seen.add(kind)
        name, product = (_quantised if is_quantised(module) else _linear)(module, *common)
        widest = max(widest, product.width)
        yield name, product
    for cls, activation in activations.items():
        yield f"the activation {cls.__name__}", RowFunction(activation, widest, *common)
    yield from _norms(model)


def _untested(model: PreTrainedModel) -> str:
    """Return the name of a layer that multiplies and that isn't tested, or "".

    On CPUs the walk's few passes would show other bits. In half precision on GPUs they wouldn't.
    """
    tested = torch.nn.Linear, torch.nn.Embedding, Conv1D
    for name, module in _layers(model):
        weights = [weight for weight in module._parameters.values() if weight is not None]
        is_product = any(weight.dim() > 1 for weight in weights) and not isinstance(module, tested)
        if is_product and not is_quantised(module):
            return str(name)
        if name.endswith("kv_b_proj"):  # it multiplies the whole cache, whose size changes
            return str(name)
    return ""


def _norms(model: PreTrainedModel) -> Iterator[tuple[str, RowFunction]]:
    """Yield one norm of each kind and width, in the model's dtype and in float32.

    Norms compute in float32, and rounding to half precision would hide other bits in most rows; torch's fused ones have
    a kernel for each dtype.
    """
    norms = dict[tuple[type, int], torch.nn.Module]()
    for _, module in _layers(model):
        weight = getattr(module, "weight", None)
        if "Norm" in type(module).__name__ and isinstance(weight, torch.Tensor) and weight.dim() == 1:
            norms.setdefault((type(module), len(weight)), module)
    for (cls, width), norm in norms.items():
        for dtype in dict.fromkeys((model.dtype, torch.float32)):
            function = RowFunction(deepcopy(norm).to(dtype), width, dtype, model.device)
            with suppress(TypeError):  # some take more than rows
                function.run(function.rows(1))
                yield f"a {cls.__name__} of {width} numbers", function


def _kind_of(module: torch.nn.Module) -> Hashable | None:
    """Return what two linear layers have in common of which one is tried; None for other modules."""
    if is_quantised(module):
        return type(module), type(getattr(module, "weight", None)), module.out_features, module.in_features
    if isinstance(module, torch.nn.Linear | Conv1D) and module.weight.is_floating_point():
        return type(module), module.bias is None, facts_of(module.weight)
    return None


def _quantised(module: Any, dtype: torch.dtype, device: torch.device) -> tuple[str, RowFunction]:
    product = RowFunction(partial(_as_in_a_model, module), module.in_features, dtype, device, is_opaque=True)
    size = f"{module.out_features} by {module.in_features}"
    return f"a product with a quantised {size} matrix ({type(module).__name__})", product


def _linear(module: Any, dtype: torch.dtype, device: torch.device) -> tuple[str, RowFunction]:
    own, bias = _own(module.weight), _own(module.bias)
    weight = own.unpacked() if isinstance(own, PackedWeight) else own
    # A router, say, does more than a product, and returns more than a tensor. Sharded layers talk to other processes.
    is_plain = type(module).forward in {torch.nn.Linear.forward, Conv1D.forward} and own is module.weight
    linear = partial(torch.nn.functional.linear, weight=weight, bias=bias)
    run = partial(_as_in_a_model, module) if is_plain else linear
    by_column = weight if isinstance(module, torch.nn.Linear) else weight.T
    is_other = rounds_rows(module)  # than the matrix that it shows
    product = RowFunction(run, by_column.shape[1], dtype, device, by_column, bias, is_opaque=is_other)
    return f"{PRODUCT} {' by '.join(map(str, weight.shape))} matrix", product


def _own(tensor: Any) -> Any:
    """Return this process's part of a sharded tensor, or the whole tensor if it isn't sharded."""
    return tensor.to_local() if is_sharded_tensor(tensor) else tensor


def _as_in_a_model(layer: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return a layer's output for rows in the shape of one text, since layers that round inputs may depend on it."""
    product: torch.Tensor = layer(rows[None])[0]
    return product


def _seconds_of_a_pass(layers: Sequence[RowFunction]) -> float:
    """Return the seconds that a few rows of all layers take."""
    inputs = [layer.rows(4) for layer in layers]
    for layer, rows in zip(layers, inputs, strict=True):
        layer.run(rows)
    began = time.perf_counter()
    for layer, rows in zip(layers, inputs, strict=True):
        layer.run(rows)
    if layers and layers[0].device.type == "cuda":
        torch.cuda.synchronize(layers[0].device)
    return time.perf_counter() - began
