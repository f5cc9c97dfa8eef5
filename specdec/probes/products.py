"""The independence of rows: whether a row of a layer has the same bits whatever number of rows goes with it.

Libraries choose other ways for few rows: on CPUs one to three rows of a float32 product commonly differ from the same
rows among more, and with several threads up to eleven. Padding to a multiple helps there, and this finds the multiple.
Activations are tried too: a tensor's last few numbers, and those where one thread's share ends, go another way.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from specdec.probes.findings import facts_of
from specdec.weights.tensor import PackedWeight

_MULTIPLES = (1, 2, 4, 8, 16, 32)
_FEW = tuple(range(1, 13))  # rows: where libraries choose among their ways
_MORE = (14, 15, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 160, 256)
_LEAST = (16, 32, 64, 160)  # tried whatever it costs: most trees
_MOST_SLICES = 4  # the sums of a single row agree by chance in one case of seven
_NUM_CORRECTED = 3
_SEED = 2402
_SCALE = 64.0  # so that what is left of a cancelled sum isn't below float16's smallest number
_ACTIVATIONS = tuple(made[0] if isinstance(made, tuple) else made for made in ACT2CLS.values())


@dataclass(frozen=True, slots=True)
class Products:
    """Rows that are independent in multiples of ``row_multiple``, tried up to ``most_rows`` of them.

    ``inexact`` says why there is no such multiple, or is "".
    """

    row_multiple: int
    most_rows: int
    inexact: str = ""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer to try: its name in a sentence, the width of its rows, and its weight, (columns, width), and bias."""

    run: Callable[[torch.Tensor], torch.Tensor]
    name: str
    width: int
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def rows(self, count: int, model: PreTrainedModel) -> torch.Tensor:
        """Return rows, (count, width), each of which has one column whose sum cancels to the error of its summation.

        Rounding to half precision hides the order of a sum in all but one of some ten thousand numbers. It can't hide
        that order where nothing but the error of the sum is left.
        """
        generator = torch.Generator().manual_seed(_SEED)
        rows = torch.randn(count, self.width, generator=generator)
        if self.weight is None:
            return rows.to(model.device, model.dtype)
        return self._cancelling(self.weight, rows.mul_(_SCALE).to(model.device, model.dtype))

    def _cancelling(self, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(len(rows), device=rows.device) * 7 % len(weight)
        factors = weight[columns].double()
        target = 0.0 if self.bias is None else -self.bias[columns].double()
        places = factors.abs().topk(min(_NUM_CORRECTED, self.width)).indices
        rows.scatter_(1, places, 0.0)
        for place in places.T:  # each leaves what its number's rounding does, a small part of the one before
            missing = target - (rows.double() * factors).sum(-1)
            at = torch.arange(len(rows), device=rows.device), place
            rows[at] = (missing / factors[at]).nan_to_num(0.0, 0.0, 0.0).to(rows.dtype)
        return rows

    def deviating(self, counts: Sequence[int], rows: torch.Tensor, whole: torch.Tensor) -> Iterator[int]:
        """Yield the numbers of rows that give some row other bits than ``whole``, the greatest number, does."""
        for count in counts:
            for index in range(max(1, _MOST_SLICES // count)):
                start = (count + index) * 7 % (len(rows) - count)  # a row's place must not matter either
                if not torch.equal(self.run(rows[start : start + count]), whole[start : start + count]):
                    yield count
                    break


@torch.inference_mode()
def probe_products(model: PreTrainedModel, seconds: float) -> Products:
    """Try every shape of layer in the model: few rows in several places, then multiples of what fits those.

    Where ``seconds`` are short, fewer numbers of rows are tried.
    """
    layers = list(_distinct(model))
    is_quick = seconds > (len(_FEW) + len(_MORE)) * _seconds_of_a_pass(layers, model)
    many = _MORE if is_quick else _LEAST
    most = many[-1]
    multiple = 1
    for layer in layers:
        rows = layer.rows(most, model)
        whole = layer.run(rows)
        for counts in (_FEW, many[:-1]):
            tried = [count for count in counts if count % multiple == 0]
            deviating = set(layer.deviating(tried, rows, whole))
            fitting = [m for m in _MULTIPLES if m >= multiple and not any(count % m == 0 for count in deviating)]
            if not fitting:
                return Products(1, most, f"a row of {layer.name} depends on how many rows go with it")
            multiple = fitting[0]
    return Products(multiple, most)


def _distinct(model: PreTrainedModel) -> Iterator[_Layer]:
    """One layer of each kind and shape; activations are taken to be as wide as the widest product."""
    found: dict[tuple[object, ...], _Layer] = {}
    activations: dict[type, torch.nn.Module] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module.weight.is_floating_point():
            is_linear = isinstance(module, torch.nn.Linear)
            size = " by ".join(map(str, module.weight.shape))
            kind = type(module), module.bias is None, facts_of(module.weight)
            if kind in found:
                continue
            weight = module.weight.unpacked() if isinstance(module.weight, PackedWeight) else module.weight
            # A router, say, is a product with something behind it, and gives back more than a tensor.
            is_plain = type(module).forward in {torch.nn.Linear.forward, Conv1D.forward}
            run = module if is_plain else partial(torch.nn.functional.linear, weight=weight, bias=module.bias)
            by_column = weight if is_linear else weight.T
            layer = _Layer(run, f"a product with a {size} matrix", by_column.shape[1], by_column, module.bias)
            found[kind] = layer
        elif isinstance(module, _ACTIVATIONS):
            activations.setdefault(type(module), module)
    yield from found.values()
    widest = max((layer.width for layer in found.values()), default=0)
    yield from (_Layer(module, f"the activation {kind.__name__}", widest) for kind, module in activations.items())


def _seconds_of_a_pass(layers: Sequence[_Layer], model: PreTrainedModel) -> float:
    """Return what a few rows of each layer cost, all together."""
    inputs = [layer.rows(4, model) for layer in layers]
    for layer, rows in zip(layers, inputs, strict=True):
        layer.run(rows)
    began = time.perf_counter()
    for layer, rows in zip(layers, inputs, strict=True):
        layer.run(rows)
    return time.perf_counter() - began
