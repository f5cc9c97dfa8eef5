"""Chooses the kernel for a model by measuring on the model's own shapes; the choice is cached for the machine.

A cached choice also makes the last bits of a model's logits the same in all processes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from specdec.machine.cache_folder import cache_folder
from specdec.machine.facts import key_of
from specdec.machine.timing import Clock, Timer
from specdec.models.weights.base import Kernel
from specdec.models.weights.contest import APART, JOINED, STOCK, Contest, by_shape
from specdec.models.weights.layers import ProductLayer
from specdec.models.weights.row_independence import RowFunction
from specdec.models.weights.verdicts import FILE, RowMultiples, Verdicts


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The fastest way found to pack a model's weights.

    Attributes:
        name: the fastest kernel's name, or "" if stock products are faster.
        joins: True if the layers of a group are faster as one product.
        row_multiples: by ``(outputs, inputs)``, the multiple to which rows are padded; 1 where absent.
    """

    name: str
    joins: bool
    row_multiples: RowMultiples = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """The clocks and the cache clearing with which kernels are timed.

    Attributes:
        timer: measures the seconds to compare.
        now: returns the time of day in seconds, to which the age of verdicts refers.
        num_cold: numbers to read between two products, so that caches are cold.
    """

    timer: Timer = field(default_factory=Timer)
    now: Clock = time.time
    num_cold: int = 2**24  # 64 MB


def choose(
    layers: Sequence[ProductLayer],
    groups: Sequence[Sequence[ProductLayer]],
    kernels: Mapping[str, Kernel],
    needs_gain: bool,
    folder: Path | None = None,
    on_shape: Callable[[], object] = lambda: None,
    timing: Timing = Timing(),
) -> KernelChoice:
    """Return the fastest of some kernels for layers of one dtype.

    Only clear verdicts are cached. They are checked again from time to time, and dropped if a check contradicts them.

    Args:
        groups: layers that receive the same rows.
        needs_gain: use stock products unless a kernel is faster.
        folder: the folder of cached verdicts (default: the user's cache folder).
        on_shape: called after each of the ``num_shapes`` has been measured.
    """
    contest = Contest(layers, groups, kernels, needs_gain, timing.timer, timing.num_cold)
    folder = cache_folder() if folder is None else folder
    verdicts, joins = Verdicts(folder / FILE, _key(layers, groups), timing.now), False
    name = verdicts.winner("kernel", contest.names, partial(contest.fastest, on_shape), contest.is_still_fastest)
    if name == STOCK:
        return KernelChoice(name, joins)
    if groups:
        measure, check = partial(contest.joining, name), partial(contest.is_still_right, name)
        joins = verdicts.winner(name, (APART, JOINED), measure, check) == JOINED
    together, question = grouped(layers, groups, joins), f"rows {name} {JOINED if joins else APART}"
    try:
        multiples = verdicts.row_multiples(question, lambda: tuple(_row_multiples(together, kernels[name])))
    except Exception:  # third-party code, which is run again where its error is reported
        multiples = ()
    return KernelChoice(name, joins, multiples)


def _key(layers: Sequence[ProductLayer], groups: Sequence[Sequence[ProductLayer]]) -> str:
    shapes = Counter((*layer.weight.shape, layer.bias is not None) for layer in layers)
    joined = Counter(tuple(tuple(layer.weight.shape) for layer in group) for group in groups)
    return key_of(str(layers[0].weight.dtype), sorted(shapes.items()), sorted(joined.items()))


def grouped(
    layers: Sequence[ProductLayer], groups: Sequence[Sequence[ProductLayer]], joins: bool
) -> list[Sequence[ProductLayer]]:
    """Return the groups of layers that are multiplied as one; the other layers are groups of their own."""
    joined = {layer.name for group in groups for layer in group} if joins else set()
    return [*(groups if joins else ()), *([layer] for layer in layers if layer.name not in joined)]


@torch.inference_mode()
def _row_multiples(groups: Iterable[Sequence[ProductLayer]], kernel: Kernel) -> Iterator[tuple[tuple[int, int], int]]:
    for same in by_shape(groups):
        matrix = torch.cat([layer.matrix for layer in same[0]])
        packed = kernel.pack(matrix)
        if packed is not None:
            run = partial(kernel.multiply, packed=packed, bias=None)
            is_other = bool(kernel.lossy)  # than the given matrix
            rows = RowFunction(run, matrix.shape[1], matrix.dtype, matrix.device, matrix, is_opaque=is_other)
            multiple = rows.multiple(is_quick=False)  # the probe of products tests more numbers of rows anyway
            if multiple is not None and multiple > 1:
                yield (matrix.shape[0], matrix.shape[1]), multiple
