"""Find out whether a row of a model's layers has the same bits whatever number of rows goes with it.

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

_MULTIPLES = (1, 2, 4, 8, 16, 32)
_COUNTS = (*range(1, 13), 14, 15, 16, 20, 28, 32, 36, 40, 60, 64, 96, 120, 128, 160, 256, 512, 1024)
_LEAST_ROWS = 160  # tried whatever it costs: most trees
_SEED = 2402
_ACTIVATIONS = tuple(made[0] if isinstance(made, tuple) else made for made in ACT2CLS.values())


@dataclass(frozen=True, slots=True)
class Products:
    """What was found: rows are independent in multiples of ``row_multiple``, tried up to ``most_rows`` of them.

    ``inexact`` says why there is no such multiple, or is "".
    """

    row_multiple: int
    most_rows: int
    inexact: str = ""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer to try: what it is called in a sentence, and how wide its rows are."""

    run: Callable[[torch.Tensor], torch.Tensor]
    name: str
    width: int

    def rows(self, count: int, model: PreTrainedModel) -> torch.Tensor:
        generator = torch.Generator().manual_seed(_SEED)
        return torch.randn(count, self.width, generator=generator).to(model.device, model.dtype)

    def deviating(self, counts: Sequence[int], model: PreTrainedModel) -> Iterator[int]:
        """The numbers of rows that give some row other bits than the greatest number does."""
        rows = self.rows(counts[-1], model)
        whole = self.run(rows)
        for count in counts[:-1]:
            start = (count * 7) % (counts[-1] - count)  # a row's place must not matter either
            part = slice(start, start + count)
            if not torch.equal(self.run(rows[part]), whole[part]):
                yield count


@torch.inference_mode()
def probe_products(model: PreTrainedModel, seconds: float) -> Products:
    """Try every shape of layer in the model; in large models with fewer rows, to keep to ``seconds``."""
    layers = list(_distinct(model))
    num_rows = seconds / max(_seconds_of_a_row(layers, model), 1e-9)
    counts = [count for count in _COUNTS if count <= _LEAST_ROWS]
    counts += [count for count in _COUNTS if count > _LEAST_ROWS and sum(c for c in _COUNTS if c <= count) < num_rows]
    most = counts[-1]
    multiple = 1
    for layer in layers:
        deviating = set(layer.deviating(counts, model))
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
            weight: torch.Tensor = module.weight
            width = int(module.in_features if isinstance(module, torch.nn.Linear) else module.nx)
            size = " by ".join(map(str, weight.shape))
            kind = type(module), tuple(weight.shape), weight.dtype, module.bias is None
            # A router, say, is a product with something behind it, and gives back more than a tensor.
            is_plain = type(module).forward in {torch.nn.Linear.forward, Conv1D.forward}
            run = module if is_plain else partial(torch.nn.functional.linear, weight=weight, bias=module.bias)
            found.setdefault(kind, _Layer(run, f"a product with a {size} matrix", width))
        elif isinstance(module, _ACTIVATIONS):
            activations.setdefault(type(module), module)
    yield from found.values()
    widest = max((layer.width for layer in found.values()), default=0)
    yield from (_Layer(module, f"the activation {kind.__name__}", widest) for kind, module in activations.items())


def _seconds_of_a_row(layers: Sequence[_Layer], model: PreTrainedModel) -> float:
    """What a row of each layer costs, all together."""
    total = 0.0
    for layer in layers:
        rows = layer.rows(32, model)
        layer.run(rows)
        began = time.perf_counter()
        layer.run(rows)
        total += (time.perf_counter() - began) / len(rows)
    return total
