"""The kernel for a model, by measurement on the model's own shapes, remembered for the machine.

A plain step reads each matrix once, from memory, so each product is timed with cold caches. A choice that is remembered
also keeps the low bits of a model's logits the same from one process to the next.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError
from torch.nn.functional import linear

from specdec.cache_folder import cache_folder
from specdec.machine import processor_name
from specdec.probes.rows import RowFunction
from specdec.weights.base import Kernel
from specdec.weights.layers import ProductLayer

_FILE = "kernels.json"
_ROWS = 1, 8  # a plain step, and a drafted one
_REPEATS = 4
_MOST_OF_A_SHAPE = 4
_MOST_BYTES = 2**24  # of a shape's matrices, where one is smaller: so small that waking threads counts
_COLD = 2**24  # numbers read between two products: 64 MB
_LEAST_GAIN = 1.05
_GAIN_OF_LOSS = 1.25  # what a kernel that loses digits must gain over one that doesn't


class Chosen(BaseModel, frozen=True, extra="forbid"):
    """The way to pack a model's weights.

    Attributes:
        name: the fastest kernel's, "" where stock products are faster.
        joins: True where groups are faster as one product.
        row_multiples: by ``(outputs, inputs)``, the multiple to which rows are padded; 1 where absent.
    """

    name: str
    joins: bool
    row_multiples: tuple[tuple[tuple[int, int], int], ...] = ()


def choose(
    layers: Sequence[ProductLayer],
    groups: Sequence[Sequence[ProductLayer]],
    kernels: Mapping[str, Kernel],
    needs_gain: bool,
    folder: Path | None = None,
    on_shape: Callable[[], object] = lambda: None,
) -> Chosen:
    """Return the fastest of some kernels for layers of one dtype, groups of which have the same rows.

    ``needs_gain``: stock products stay unless they are slower. ``folder``: where choices are remembered. ``on_shape``
    is called for each of the ``num_shapes`` when it has been measured.
    """
    facts = _facts(layers, groups, (*kernels, *(("",) if needs_gain else ())))
    path = (cache_folder() if folder is None else folder) / _FILE
    known = _read(path)
    with suppress(KeyError, ValidationError):
        return Chosen.model_validate(known[facts])
    chosen = _measured(layers, groups, kernels, needs_gain, on_shape)
    with suppress(OSError):  # it is measured again, then
        _write(path, known | {facts: chosen.model_dump()})
    return chosen


def _facts(layers: Sequence[ProductLayer], groups: Sequence[Sequence[ProductLayer]], names: Iterable[str]) -> str:
    shapes = Counter((*layer.weight.shape, layer.bias is not None) for layer in layers)
    joined = Counter(tuple(len(layer.matrix) for layer in group) for group in groups)
    # What instructions torch and oneDNN use can be limited from outside: float32's way tells them apart.
    machine = processor_name(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), torch.__version__
    return repr((machine, str(layers[0].weight.dtype), sorted(shapes.items()), sorted(joined.items()), sorted(names)))


def _measured(
    layers: Sequence[ProductLayer],
    groups: Sequence[Sequence[ProductLayer]],
    kernels: Mapping[str, Kernel],
    needs_gain: bool,
    on_shape: Callable[[], object],
) -> Chosen:
    seconds = dict.fromkeys(kernels, 0.0) | ({"": 0.0} if needs_gain else {})
    for same in _by_shape([layer] for layer in layers):
        matrices = [group[0].matrix for group in _some(same)]
        timed = _seconds_of({name: _products(kernels.get(name), matrices) for name in seconds}, matrices[0])
        for name in seconds:
            seconds[name] += timed[name] * len(same)
        on_shape()
    penalty = {name: _GAIN_OF_LOSS if kernel.loss(layers[0].weight.dtype) else 1.0 for name, kernel in kernels.items()}
    name = min(seconds, key=lambda name: seconds[name] * penalty.get(name, _LEAST_GAIN))
    if not name or seconds[name] == math.inf:
        return Chosen(name=name, joins=False)
    joins = bool(groups) and _gains_by_joining(groups, kernels[name])
    multiples = _row_multiples(grouped(layers, groups, joins), kernels[name])
    return Chosen(name=name, joins=joins, row_multiples=tuple(multiples))


def num_shapes(layers: Sequence[ProductLayer]) -> int:
    """Return the number of shapes that are measured."""
    return len(_by_shape([layer] for layer in layers))


def grouped(
    layers: Sequence[ProductLayer], groups: Sequence[Sequence[ProductLayer]], joins: bool
) -> list[Sequence[ProductLayer]]:
    """Return the layers in the groups that are multiplied as one, those of no group by themselves."""
    joined = {layer.name for group in groups for layer in group} if joins else set()
    return [*(groups if joins else ()), *([layer] for layer in layers if layer.name not in joined)]


@torch.inference_mode()
def _row_multiples(groups: Sequence[Sequence[ProductLayer]], kernel: Kernel) -> Iterator[tuple[tuple[int, int], int]]:
    for same in _by_shape(groups):
        matrix = torch.cat([layer.matrix for layer in same[0]])
        packed = kernel.pack(matrix)
        if packed is not None:
            run = partial(kernel.multiply, packed=packed, bias=None)
            is_other = bool(kernel.lossy)  # than the matrix that it was given
            rows = RowFunction(run, matrix.shape[1], matrix.dtype, matrix.device, matrix, is_opaque=is_other)
            multiple = rows.multiple()
            if multiple is not None and multiple > 1:
                yield (matrix.shape[0], matrix.shape[1]), multiple


def _by_shape(groups: Iterable[Sequence[ProductLayer]]) -> list[list[Sequence[ProductLayer]]]:
    same: dict[tuple[torch.Size, ...], list[Sequence[ProductLayer]]] = {}
    for group in groups:
        same.setdefault(tuple(layer.weight.shape for layer in group), []).append(group)
    return list(same.values())


def _some(same: Sequence[Sequence[ProductLayer]]) -> Sequence[Sequence[ProductLayer]]:
    each = sum(layer.weight.nbytes for layer in same[0])
    return same[: max(1, min(_MOST_OF_A_SHAPE, _MOST_BYTES // each))]


def _gains_by_joining(groups: Sequence[Sequence[ProductLayer]], kernel: Kernel) -> bool:
    gain = 0.0
    for same in _by_shape(groups):
        some = _some(same)
        ways = {
            "apart": _products(kernel, [layer.matrix for group in some for layer in group]),
            "joined": _products(kernel, [torch.cat([layer.matrix for layer in group]) for group in some]),
        }
        timed = _seconds_of(ways, some[0][0].matrix)
        gain += (timed["apart"] * len(same[0]) - timed["joined"]) * len(same)
    return gain > 0.0


_Product = Callable[[torch.Tensor], torch.Tensor]


def _products(kernel: Kernel | None, matrices: Sequence[torch.Tensor]) -> list[_Product] | None:
    """Return a function of rows for each matrix; None where the kernel can't hold them."""
    if kernel is None:
        return [partial(linear, weight=matrix) for matrix in matrices]
    try:
        packed = [kernel.pack(matrix) for matrix in matrices]
        kernel.multiply(matrices[0][:1], packed[0], None)
    except Exception:  # a third party's code, and torch's private operations: who packs by it hears what it is
        return None
    if any(each is None for each in packed):
        return None
    return [partial(kernel.multiply, packed=each, bias=None) for each in packed]


@torch.inference_mode()
def _seconds_of(ways: Mapping[str, Sequence[_Product] | None], like: torch.Tensor) -> dict[str, float]:
    """Return the seconds of a product, by way, with few rows and with more; infinity for a way that isn't one."""
    cold = torch.zeros(_COLD)
    able = {name: products for name, products in ways.items() if products is not None}
    total = {name: 0.0 if name in able else math.inf for name in ways}
    for count in _ROWS:
        rows = torch.ones(1, count, like.shape[1], dtype=like.dtype)
        least = dict.fromkeys(able, math.inf)
        for _ in range(1 + _REPEATS):  # the first one plans
            for name, products in able.items():
                cold.sum()
                began = time.perf_counter()
                for multiply in products:
                    multiply(rows)
                least[name] = min(least[name], (time.perf_counter() - began) / len(products))
        for name in least:
            total[name] += least[name]
    return total


def _read(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return known
    return {}


def _write(path: Path, known: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{time.monotonic_ns()}")  # another process may be writing its own
    written.write_text(json.dumps(known, indent=1), encoding="utf-8")
    written.replace(path)
