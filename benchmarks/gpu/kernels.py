"""Each kernel of a fused layer alone: its error against torch, and its time in a CUDA graph of 100."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.parts import Findings, Report
from benchmarks.gpu.shapes import Shape, microseconds
from specdec import DraftTree
from specdec.backends.fused.layer import LayerKernels
from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Norm, Slots
from specdec.layout import Shapes
from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.masks.slot_table.kernel import attend_by_torch, slot_table_attention

Call = Callable[[LayerKernels, int], torch.Tensor]


def kernels_of(device: torch.device) -> LayerKernels:
    """The kernels of fused layers: Triton's on a GPU, torch's in a rehearsal."""
    if device.type == "cuda":
        from specdec.backends.fused import kernels

        return kernels
    from tests.support import fused_kernels

    return fused_kernels


def kernels_alone(
    shapes: Sequence[Shape],
    nodes: Sequence[int],
    contexts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    most_bytes: int = 2**27,
) -> Callable[[Report, Findings], None]:
    """Return the part that tests and times each kernel.

    Args:
        most_bytes: of the matrices that a kernel reads in turn: more than the GPU's cache holds, as in a model's pass.
    """

    def run(report: Report, found: Findings) -> None:
        kernels = kernels_of(device)
        found["kernels"] = "Triton's" if device.type == "cuda" else "torch's: Triton's need a GPU"
        for shape in shapes:
            for number in nodes:
                case = Case(shape, number, contexts[0], dtype, device, most_bytes)
                times: Findings = {}
                found[f"{shape.name}, us of a call with {number} nodes"] = times
                for name, call in case.calls().items():
                    report.attempt(times, name, partial(_us, call, kernels, device))
                    if number == nodes[0]:
                        errors = found.setdefault(f"{shape.name}, error against torch", {})
                        report.attempt(errors, name, partial(_error, call, kernels))
                for context in contexts[1:]:
                    longer = Case(shape, number, context, dtype, device, most_bytes)
                    name = f"attention, context {context}"
                    report.attempt(times, name, partial(_us, longer.attention, kernels, device))

    return run


@torch.no_grad()
def _us(call: Call, kernels: LayerKernels, device: torch.device) -> float:
    return round(microseconds(partial(call, kernels), device), 2)


@torch.no_grad()
def _error(call: Call, kernels: LayerKernels) -> float:
    """The largest error, as a part of the largest number."""
    from tests.support import fused_kernels

    found, expected = (call(each, 0).double().clone() for each in (kernels, fused_kernels))
    return float(f"{float((found - expected).abs().max() / expected.abs().max()):.2g}")


class Case:
    """The kernels of a layer on random numbers: a tree of so many nodes after a context."""

    def __init__(
        self, shape: Shape, num_nodes: int, context: int, dtype: torch.dtype, device: torch.device, most_bytes: int
    ) -> None:
        self._shape, self._num_nodes, self._dtype, self._device = shape, num_nodes, dtype, device
        self._most_bytes, self._draw = most_bytes, torch.Generator(device).manual_seed(0)
        heads, groups, size = shape.heads, shape.groups, shape.head_size
        num_cached = 2 * groups * (context + num_nodes) * size * dtype.itemsize
        self._caches = [
            self._random(2, 1, groups, context + num_nodes, size)
            for _ in range(max(1, min(shape.layers, most_bytes // num_cached)))
        ]
        self._query, self._mask = self._random(1, heads, num_nodes, size), self._table(context)
        self._slots = torch.arange(context, context + num_nodes, device=device)[None]

    def calls(self) -> dict[str, Call]:
        """Every kernel by name: a function of the kernels and of a call's number, which says whose turn it is."""
        shape, size, num = self._shape, self._shape.head_size, self._num_nodes
        queries, keys = shape.heads * size, shape.groups * size
        x, attended, inner = (self._random(num, width) for width in (shape.hidden, queries, shape.mlp))
        out, gated, logits = torch.empty_like(x), torch.empty_like(inner), x.new_empty(num, shape.vocab)
        qkv, placed = self._random(num, queries + 2 * keys), self._random(num, queries)
        multiplied, heads = torch.empty_like(qkv), Heads(shape.heads, shape.groups, size)
        angles = self._random(num, size), self._random(num, size)
        norm, rows = Norm(self._random(shape.hidden), 1e-5), torch.zeros(1, 1, dtype=torch.long, device=self._device)
        q, k, v = (self._matrices(width, shape.hidden) for width in (queries, keys, keys))
        o, down = self._matrices(shape.hidden, queries), self._matrices(shape.hidden, shape.mlp)
        gate, up = (self._matrices(shape.mlp, shape.hidden) for _ in range(2))
        head = self._matrices(shape.vocab, shape.hidden)

        def slots(number: int) -> Slots:
            return Slots(rows, self._slots, *_turn(self._caches, number))

        def of(out: torch.Tensor, run: Callable[[LayerKernels, int], object]) -> Call:
            return lambda by, number: (run(by, number), out)[1]

        silu = Activation.SILU
        return {
            "norm": of(out, lambda by, _: by.norm(x, norm, out)),
            "q, k, v": of(multiplied, lambda by, n: by.products(x, [_turn(each, n) for each in (q, k, v)], multiplied)),
            "place": of(placed, lambda by, n: by.place(qkv, heads, angles, slots(n), placed)),
            "attention": self.attention,
            "output, added": of(out, lambda by, n: by.add_product(attended, _turn(o, n), x, out)),
            "gate and up": of(gated, lambda by, n: by.gated_product(x, _turn(gate, n), _turn(up, n), silu, gated)),
            "down, added": of(out, lambda by, n: by.add_product(inner, _turn(down, n), x, out)),
            "head": of(logits, lambda by, n: by.products(x, [_turn(head, n)], logits)),
        }

    def attention(self, by: LayerKernels, number: int) -> torch.Tensor:
        """Attention by slot tables: not one of a layer's own kernels, but by torch where these are."""
        key, value = _turn(self._caches, number)
        if by is not kernels_of(self._device):
            table = self._mask.as_subclass(torch.Tensor)[:, 0]
            kind = AttentionKind.of(self._query, None, None, None)
            return attend_by_torch(self._query, key, value, table, kind)
        return slot_table_attention(torch.nn.Module(), self._query, key, value, self._mask)[0]

    def _table(self, context: int) -> torch.Tensor:
        """The mask of a root and its children."""
        tree = DraftTree(0)
        for token in range(1, self._num_nodes):
            tree.add(0, token)
        kinds = {"full_attention": None}
        shapes = Shapes(self._shape.vocab, None, True, kinds, self._dtype, self._device)
        table = SlotTableCompiler().compile([tree], [context], shapes).masks["full_attention"]
        return table.as_subclass(torch.Tensor).to(self._device)

    def _matrices(self, outputs: int, inputs: int) -> list[LinearWeights]:
        num = max(1, min(100, self._most_bytes // (outputs * inputs * self._dtype.itemsize)))
        return [LinearWeights(self._random(outputs, inputs) / inputs**0.5) for _ in range(num)]

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._draw, device=self._device, dtype=self._dtype)


def _turn(each: Sequence[Any], number: int) -> Any:
    return each[number % len(each)]
