"""A transformers model with a few fixed shapes, so that on CUDA a step is one graph replay.

Trees, wanted rows of logits and visible slots are padded to a few sizes. Keys and values are in buffers that are
reallocated only when they outgrow their bucket, and all inputs of a pass, including the prefix length, are copied into
tensors at fixed addresses. On CUDA the model's forward is captured once for each shape and replayed; elsewhere it is
called. The tokens are those of the ``hf`` backend. Masks are dense, and padded here, or of a fixed shape by themselves.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec.backends.cache import SPARE_SLOTS, RaggedCache
from specdec.backends.hf import HFBackend
from specdec.backends.hidden_states import stacked
from specdec.backends.inputs import Outputs
from specdec.backends.output import Choices, Output, choices_of
from specdec.backends.row_inputs import NO_ARGUMENTS
from specdec.backends.static_cache import StaticPlacement, StaticRaggedCache
from specdec.backends.supported_passes import SupportedPasses
from specdec.errors import ModelError
from specdec.layout import Compiler, FixedMask, KeyedDraw, Layout
from specdec.machine.cuda_graphs import GraphInputs, Graphs, power_of_two, slot_bucket
from specdec.machine.number_block import NumberBlock
from specdec.models.gradients import without_gradients
from specdec.models.independent_rows import has_kernels
from specdec.models.notes import lock_of
from specdec.models.structure import are_hooked, are_same, facts_of


class StaticBackend(HFBackend):
    """A transformers model driven with fixed shapes; refuses models and masks that don't allow them."""

    no_chains: ClassVar[str] = "the static backend has no chains of varying length"
    keeps_states: ClassVar[bool] = False
    widths: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)

    def _make_cache(self, num_layers: int) -> RaggedCache:
        self._placement = StaticPlacement()
        self._graphs = Graphs(self.shapes.device)
        self._state: list[object] = []  # of the model that they run
        self._draw = self._drawing(self.shapes.device)
        self._is_hooked = False
        self._static_cache = StaticRaggedCache(num_layers, self._placement)
        return self._static_cache

    @staticmethod
    def _drawing(device: torch.device) -> Callable[..., torch.Tensor] | None:
        """Return the function that draws tokens on a device, None if there is none that works."""
        if not has_kernels(device):
            return None
        try:
            from specdec.sampling.keyed_draws import draw  # Triton is there with torch for CUDA alone

            zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
            draw(torch.zeros(1, 1, 32, device=device), zero, zero[0], torch.ones(1, dtype=torch.float64, device=device))
        except Exception:  # Triton's, without a compiler, say
            return None
        return draw

    def __init__(self, model: PreTrainedModel, compiler: Compiler, passes: SupportedPasses | None = None) -> None:
        if compiler.attention is not None and not compiler.has_fixed_shapes:
            if compiler.bit_exact:
                raise ModelError("the static backend has exact numerics on GPUs with Triton only")
            raise ModelError(
                "the static backend takes dense masks and masks of fixed shape (has_fixed_shapes): leave out mask=, or "
                "use backend='hf'"
            )
        super().__init__(model, compiler, passes)

    @classmethod
    def accepts(cls, model: object) -> bool:
        """Return True for a model on one GPU whose passes can be captured: one without hooks."""
        if not isinstance(model, PreTrainedModel):
            return False
        return _place_of_all(model) == "cuda" and not are_hooked([*model.modules()])

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"passes run without CUDA graphs: {self._graphs.fault}",) if self._graphs.fault else ()

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        with without_gradients(self._is_inference):
            self._static_cache.move_waiting()

    def refresh(self) -> None:
        """Drop all graphs if the model's modules were replaced or changed, or its weights moved.

        Replays would skip hooks and replaced forwards: models with any aren't captured.
        """
        super().refresh()
        modules = list(self.model.modules())
        weights = chain(self.model.parameters(), self.model.buffers())
        with lock_of(self.model):  # passes switch the configured attention
            state = [*modules, *facts_of(modules), *map(_place_of, weights)]
        if not are_same(state, self._state):
            self._graphs.forget()
            self._state = state
        self._is_hooked = are_hooked(modules)

    def open(self, capacity: int) -> None:
        self._make_way([capacity])
        super().open(capacity)

    def expect(self, capacities: Sequence[int]) -> None:
        self._make_way(capacities)
        super().expect(capacities)

    def _make_way(self, capacities: Sequence[int]) -> None:
        """Free buffers that are too short, if no row is open, so that no more rows are made longer than are needed."""
        held = [layer.keys.shape[2] for layer in self._cache.layers if layer.is_initialized]
        if held and not self._cache.lengths and min(held) < slot_bucket(max(capacities, default=0)):
            self._cache.drop()
            self._graphs.forget()

    def trim(self) -> bool:
        with without_gradients(self._is_inference):
            return self._cache.trim(power_of_two, slot_bucket)

    def expect_hidden(self, layers: Collection[int]) -> None:
        if layers and not self._hidden_states.is_able:
            reason = f"{type(self.model).__name__} has no single list of layers, so the static backend"
            raise ModelError(f"{reason} gives no hidden states: use backend='hf'")

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        if not capacities:
            return self._cache.bytes_for(())
        anew = not self._cache.lengths  # shorter buffers are dropped then
        rows = power_of_two(len(capacities) if anew else max(len(capacities), self._placement.num_rows))
        slots = slot_bucket(max(capacities) + SPARE_SLOTS)  # a tree may reach the next bucket
        return self._cache.bytes_for([slots] * rows, anew)

    def _pass(self, layout: Layout) -> Output:
        self.expect_hidden(layout.hidden)
        with without_gradients(self._is_inference):  # or inputs made in a caller's inference mode couldn't be reused
            self._prepare(layout)
            _, more = self._row_inputs.arguments(layout, self.shapes.device)
            inputs = self._inputs(layout, has_inputs=bool(more))
            self.is_warm = True
            run = partial(self._call, hidden=layout.hidden, num_top=layout.num_top)
            is_replayed = self._graphs.captures and not self._is_hooked and not more
            logits, choices, *states = self._replayed(run, inputs) if is_replayed else run(inputs.owned(), more=more)
        rows, columns = len(layout.lengths), len(layout.columns)
        return Output(
            logits[:rows, :columns],
            layout.columns,
            stacked([each[:rows] for each in states]),
            layout.hidden,
            choices=Choices(choices[:rows, :columns], layout.draws if self._draw else ()) if len(choices) else None,
        )

    def _prepare(self, layout: Layout) -> None:
        """Make room for the next pass, and set what it reads."""
        place, first = self._placement, layout.first
        place.has_row_numbers = self.compiler.has_fixed_shapes and layout.attention is not None
        place.first, needed = first, max(layout.lengths) + layout.width
        if place.has_row_numbers:  # attention reads what a node sees: one graph serves texts of all lengths
            held = next((layer.keys.shape[2] for layer in self._cache.layers if layer.is_initialized), 0)
            place.visible, needed = 0, needed if needed > held else 0
        else:
            place.visible = needed = slot_bucket(needed)
        # Growing moves the buffers and invalidates captured graphs, so they grow rarely and by large steps.
        place.num_slots = slot_bucket(max(place.num_slots, needed))
        place.num_rows = power_of_two(max(place.num_rows, first + len(layout.lengths)))
        for row, length in enumerate(layout.lengths, first):
            self._cache.reached[row] = max(self._cache.reached[row], length + layout.width)

    def _replayed(self, run: partial[Outputs], inputs: GraphInputs) -> Outputs:
        """Run a pass by a graph's replay, from the second pass of a shape on."""
        place, layers = self._placement, [layer for layer in self._cache.layers if layer.is_initialized]
        for layer in layers:
            layer.reserve(place.num_rows, place.num_slots)
        # Graphs write to rows that a tensor names, and read a slice that was fixed when they were captured.
        first = None if place.has_row_numbers else place.first
        shape = first, place.visible, inputs.numbers.parts, *run.keywords.items()
        outputs = self._graphs.run(run, inputs, shape, layers[0].keys if layers else None)
        self.is_warm = self._graphs.is_warm
        return tuple(output.clone() for output in outputs)

    def _inputs(self, layout: Layout, has_inputs: bool) -> GraphInputs:
        """Return a pass's inputs, with the last row repeated up to a power of two: fewer numbers of rows, fewer graphs.

        They are "input_ids", "positions" and "slots", (rows, width); "rows", (rows, 1); "columns", (columns,); masks by
        kind of attention; and "seeds" and "temperatures", (rows,), if tokens are drawn.

        With row numbers the copies read and write the last row itself, whose slots get the same numbers again.
        Otherwise they write to the rows that follow in the cache, unless those are open, and each node sees itself
        alone.

        Args:
            has_inputs: True if the pass reads images or the like, which rows can't be repeated with.
        """
        first, columns, place, num_rows = layout.first, layout.columns, self._placement, len(layout.lengths)
        is_last, most = first + num_rows >= len(self._cache.lengths), power_of_two(num_rows)
        is_padded = place.has_row_numbers or (is_last and first + most <= place.num_rows)
        is_padded &= not has_inputs
        order = np.minimum(np.arange(most if is_padded else num_rows), num_rows - 1)
        multiple = self.shapes.row_multiple  # the head is a matrix product too: its rows are padded like others
        num_columns = min(-(-power_of_two(len(columns)) // multiple) * multiple, layout.width)
        slots = np.array(layout.lengths)[:, None] + np.arange(layout.width)
        rows = (order if place.has_row_numbers else np.arange(len(order))) + first
        numbers: dict[str, np.ndarray] = {
            "input_ids": layout.input_ids.numpy()[order],
            "positions": layout.positions.numpy()[order],
            "rows": rows[:, None],
            "slots": slots[order],
            "columns": np.array([*columns, *(columns[-1] for _ in range(num_columns - len(columns)))]),
        }
        if offsets := self._row_inputs.offsets(layout):
            numbers["offsets"] = np.array(offsets)[order, None]
        if layout.draws and self._draw:
            draws = [layout.draws[row] or KeyedDraw(0, 1.0) for row in order]
            numbers["seeds"] = np.array([each.seed for each in draws], np.int64)
            numbers["temperatures"] = np.array([each.temperature for each in draws], np.float64)
        dense = dict[str, torch.Tensor]()
        for kind in self.shapes.attention:
            if place.has_row_numbers:
                fixed = layout.masks[kind]
                assert isinstance(fixed, FixedMask), "the compiler has fixed shapes"
                numbers[kind] = fixed.numbered_from(first).numpy()[order]
            else:
                dense[kind] = self._mask(layout, kind, len(order))
        return GraphInputs(NumberBlock.of(numbers, self.shapes.device.type == "cuda"), dense, self.shapes.device)

    def _mask(self, layout: Layout, kind: str, num_rows: int) -> torch.Tensor:
        """Return the dense mask of a kind of layer in its static shape."""
        visible, dtype, device = self._placement.visible, self.shapes.dtype, self.shapes.device
        hidden, given = torch.finfo(dtype).min, len(layout.lengths)
        mask = torch.full((num_rows, 1, layout.width, visible), hidden, dtype=dtype, device=device)
        if layout.masks:
            mask[:given, ..., : layout.masks[kind].shape[3]] = layout.masks[kind]
        else:  # one node after all slots, or a chain from the start: slots are positions
            positions = layout.positions.to(device)
            seen = torch.arange(visible, device=device) <= positions[:, None, :, None]
            mask[:given].masked_fill_(seen, 0.0)
        if num_rows > given:
            nodes = torch.arange(layout.width, device=device)
            mask[given:, 0, nodes, nodes + layout.lengths[-1]] = 0.0
        return mask

    def _call(
        self, inputs: GraphInputs, hidden: tuple[int, ...], num_top: int, more: Mapping[str, Any] = NO_ARGUMENTS
    ) -> Outputs:
        """Return the logits, the choices on a device that has to send them to the host, and hidden states."""
        self._placement.rows, self._placement.slots = inputs["rows"], inputs["slots"]
        masks = {kind: inputs[kind] for kind in self.shapes.attention}
        mask = next(iter(masks.values())) if len(masks) == 1 else masks
        with self._attention(sees_all=True, name=self.compiler.attention if self._placement.has_row_numbers else None):
            positions = inputs["positions"] + inputs["offsets"] if "offsets" in inputs else inputs["positions"]
            logits, *states = self._run(inputs["input_ids"], positions, mask, inputs["columns"], hidden, more)
        drawn = None
        if self._draw and "seeds" in inputs:
            positions = inputs["positions"].index_select(1, inputs["columns"])
            drawn = self._draw(logits, positions, inputs["seeds"], inputs["temperatures"])
        choices = logits.new_empty(0) if logits.is_cpu else choices_of(logits, num_top, drawn)
        return logits, choices, *states


def _place_of(tensor: torch.Tensor) -> object:
    """Return a plain tensor's address; other kinds have none, or stop being packed when they are asked for it."""
    return tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor


def _place_of_all(model: PreTrainedModel) -> str:
    """Return the type of the device that holds a whole model, "" if several do."""
    devices = {weight.device for weight in chain(model.parameters(), model.buffers())}
    return next(iter(devices)).type if len(devices) == 1 else ""
