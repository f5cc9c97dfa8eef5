"""A decoder layer of transformers, computed by kernels; its parts are read from the layer's own modules.

A layer is known by its attributes, not by its class: 28 of transformers' families have Llama's, and more have one part
in another form. Whether what was read is the whole of it is seen by the self-test at load, which compares passes with
the model's own forward.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from specdec.backends.fused.parts import Activation, Heads, LinearWeights, Matrix, ModuleProduct, Norm, Slots
from specdec.backends.fused.reading import LayerReader, NormReader
from specdec.models.weights.row_independence import PRODUCT, RowFunction


class LayerKernels(Protocol):
    """The kernels; ``kernels.py`` has those of GPUs, and says what each one computes."""

    def norm(self, x: torch.Tensor, by: Norm, out: torch.Tensor, residual: torch.Tensor | None = None) -> None: ...

    def products(self, x: torch.Tensor, matrices: Sequence[LinearWeights], out: torch.Tensor) -> None: ...

    def add_product(
        self, x: torch.Tensor, matrix: LinearWeights, residual: torch.Tensor, out: torch.Tensor, factor: float = 1.0
    ) -> None: ...

    def gated_product(
        self, x: torch.Tensor, gate: LinearWeights, up: LinearWeights, activation: Activation, out: torch.Tensor
    ) -> None: ...

    def place(
        self,
        qkv: torch.Tensor,
        heads: Heads,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        to: Slots,
        query: torch.Tensor,
    ) -> None: ...


class FusedNorm(torch.nn.Module):
    """Computes a model's last norm, in its place."""

    def __init__(self, parts: NormReader, kernels: LayerKernels) -> None:
        super().__init__()
        self._parts, self._kernels = parts, kernels

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.flatten(0, -2)
        normed = torch.empty_like(x)
        self._kernels.norm(x, self._parts.read(), normed)
        return normed.view_as(hidden_states)

    def row_functions(self) -> Iterator[tuple[str, RowFunction]]:
        """Yield the functions of rows that it consists of, which must be independent, with their names."""
        weight = self._parts.read().weight
        yield "the last norm", RowFunction(self.forward, len(weight), weight.dtype, weight.device)


class FusedHead(torch.nn.Module):
    """Computes a model's logits, in the place of its head, which is a plain matrix."""

    def __init__(self, head: torch.nn.Linear, kernels: LayerKernels) -> None:
        super().__init__()
        self._head, self._kernels = (head,), kernels  # not as a module of its own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_head"][0], name)

    @property
    def _matrix(self) -> LinearWeights:
        return LinearWeights(self._head[0].weight, self._head[0].bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _product(self._kernels, self._matrix, hidden_states)

    def row_functions(self) -> Iterator[tuple[str, RowFunction]]:
        """Yield what ``FusedNorm.row_functions`` yields."""
        yield from _tested(self._kernels, [self._matrix])


class FusedLayer(torch.nn.Module):
    """Computes a layer in nine kernels, in the place of the layer among the model's layers.

    Linear layers that aren't plain matrices multiply by themselves, between the kernels.

    Args:
        parts: of the layer, which it reads in each call: weights may be replaced between passes.
        attention: name of the attention that reads the masks.
    """

    def __init__(self, parts: LayerReader, kernels: LayerKernels, attention: str, cache_argument: str) -> None:
        super().__init__()
        self._parts, self._kernels, self._cache_argument = parts, kernels, cache_argument
        self._attend = AttentionInterface._global_mapping[attention]
        self.multiplying_modules = torch.nn.ModuleList(parts.multiplying_modules)  # where the probe of rows finds them

    def __getattr__(self, name: str) -> Any:
        """Some models ask a layer for its kind of attention."""
        if name in self.__dict__["_modules"]:
            return self.__dict__["_modules"][name]
        return getattr(self.__dict__["_parts"].layer, name)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """Return the layer's output, (rows, width, size); called by transformers' model.

        Args:
            hidden_states: (rows, width, size).
            attention_mask: of the compiler whose attention this is.
            position_embeddings: cosines and sines, (rows, width, rotated part of a head).
        """
        parts, kernels, x = self._parts, self._kernels, hidden_states.flatten(0, 1)
        normed, own = torch.empty_like(x), torch.empty_like(x)
        before, after, before_mlp, after_mlp = parts.norms()
        h = self._normed(x, before, normed)
        h = self._attended(h, hidden_states.shape[:2], attention_mask, position_embeddings, others)
        self._added(h, parts.output(), after, x, own)
        h = self._normed(own, before_mlp, normed)
        gate, up, down = parts.mlp()
        if isinstance(gate, LinearWeights) and isinstance(up, LinearWeights):
            gated = x.new_empty(len(x), gate.num_outputs)
            kernels.gated_product(h, gate, up, parts.activation, gated)
        else:
            gated = parts.act(self._multiplied(h, [gate])) * self._multiplied(h, [up])
        self._added(gated, down, after_mlp, own, own)
        return own.view_as(hidden_states)

    def row_functions(self) -> Iterator[tuple[str, RowFunction]]:
        """Yield what ``FusedNorm.row_functions`` yields."""
        matrices = [*self._parts.inputs(), self._parts.output(), *self._parts.mlp()]
        yield from _tested(self._kernels, [each for each in matrices if isinstance(each, LinearWeights)])

    def _normed(self, x: torch.Tensor, norm: Norm | None, out: torch.Tensor) -> torch.Tensor:
        if norm is None:
            return x
        self._kernels.norm(x, norm, out)
        return out

    def _multiplied(self, x: torch.Tensor, matrices: Sequence[Matrix]) -> torch.Tensor:
        """Return the products of rows with matrices, side by side."""
        if len(matrices) == 1 and isinstance(matrices[0], ModuleProduct):
            return matrices[0].of(x)
        plain = [each for each in matrices if isinstance(each, LinearWeights)]
        if len(plain) < len(matrices):
            return torch.cat([self._multiplied(x, [each]) for each in matrices], -1)
        out = x.new_empty(len(x), sum(each.num_outputs for each in plain))
        self._kernels.products(x, plain, out)
        return out

    def _added(self, x: torch.Tensor, by: Matrix, norm: Norm | None, residual: torch.Tensor, out: torch.Tensor) -> None:
        """Write the residual plus a product of ``x``, or plus the product's norm, to ``out``."""
        factor = self._parts.residual_factor
        if norm is not None:
            self._kernels.norm(self._multiplied(x, [by]), norm, out, residual)
        elif isinstance(by, LinearWeights):
            self._kernels.add_product(x, by, residual, out, factor)
        else:
            product = by.of(x)
            torch.add(residual, product if factor == 1.0 else product * factor, out=out)

    def _attended(
        self,
        h: torch.Tensor,
        shape: Sequence[int],
        mask: torch.Tensor | None,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        others: Mapping[str, Any],
    ) -> torch.Tensor:
        """Return attention before its output product, (nodes, heads * size)."""
        parts, kernels, heads = self._parts, self._kernels, self._parts.heads()
        (rows, width), size = shape, heads.size
        num_queries, num_keys = heads.num_heads * size, heads.num_groups * size
        qkv, query = self._multiplied(h, parts.inputs()), h.new_empty(len(h), num_queries)
        for norm, part in zip(parts.wide_norms(), torch.split(qkv, [num_queries, num_keys, num_keys], 1), strict=False):
            kernels.norm(part, norm, part)
        layer = others[self._cache_argument].layers[parts.number]
        place = layer.reserved(*[qkv.new_empty(1, heads.num_groups, 1, size)] * 2)
        to = Slots(place.rows, place.slots, layer.keys, layer.values)
        if angles is not None:
            cos, sin = (each.expand(rows, width, -1).flatten(0, 1).contiguous() for each in angles)
            angles = (cos, sin) if parts.is_rotated else None
        kernels.place(qkv, heads, angles, to, query)
        attended: torch.Tensor
        attended, _ = self._attend(
            self,
            query.view(rows, width, heads.num_heads, size).transpose(1, 2),
            *layer.visible(rows),
            mask,
            scaling=parts.scaling,
            softcap=parts.softcap,
            s_aux=parts.sinks,
        )
        return attended.reshape(len(h), num_queries)


def _product(kernels: LayerKernels, matrix: LinearWeights, rows: torch.Tensor) -> torch.Tensor:
    """Return rows, (…, inputs), times a matrix: (…, outputs)."""
    x = rows.flatten(0, -2)
    out = x.new_empty(len(x), matrix.num_outputs)
    kernels.products(x, [matrix], out)
    return out.view(*rows.shape[:-1], -1)


def _tested(kernels: LayerKernels, matrices: Sequence[LinearWeights]) -> Iterator[tuple[str, RowFunction]]:
    for matrix in matrices:
        weight = matrix.weight
        common = weight.shape[1], weight.dtype, weight.device, weight, matrix.bias
        name = f"{PRODUCT} {' by '.join(map(str, weight.shape))} matrix"
        yield name, RowFunction(partial(_product, kernels, matrix), *common)
