"""A transformers model with a few fixed shapes, so that on CUDA a step is one graph replay.

Trees, wanted rows of logits and visible slots are padded to a few sizes. Keys and values are in buffers that are
reallocated only when they outgrow their bucket, and all inputs of a pass, including the prefix length, are copied into
tensors at fixed addresses. On CUDA the model's forward is captured once for each shape and replayed; elsewhere it is
called. The tokens are those of the ``hf`` backend. Masks are dense, and padded here, or of a fixed shape by themselves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from specdec.backends.cache import SPARE_SLOTS, RaggedCache, RaggedLayer
from specdec.backends.hf import HFBackend
from specdec.backends.hidden_states import stacked
from specdec.backends.inputs import Outputs
from specdec.backends.output import Output
from specdec.backends.placement import Placement
from specdec.backends.supported_passes import SupportedPasses
from specdec.errors import ModelError
from specdec.layout import Compiler, FixedMask, Layout
from specdec.machine.cuda_graphs import Graphs, power_of_two, slot_bucket
from specdec.models.gradients import without_gradients
from specdec.models.notes import lock_of
from specdec.models.structure import are_hooked, are_same, facts_of


class StaticLayer(RaggedLayer):
    """Keys and values of one layer; a tensor has the slots to write, and a fixed number of slots is read."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        place = self.reserved(key_states, value_states)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[place.rows, :, place.slots] = states.transpose(1, 2)
        return self.visible(len(key_states))

    def reserved(self, key_states: torch.Tensor, value_states: torch.Tensor) -> "StaticPlacement":
        """Make room for a pass's keys and values, (rows, heads, width, size), and return where they go."""
        place = self.placement
        assert isinstance(place, StaticPlacement), "a static cache has static placements"
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(place.num_rows, place.num_slots)
        return place

    def visible(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that a pass over ``num_rows`` rows reads."""
        place = self.placement
        assert isinstance(place, StaticPlacement), "as above"
        rows = slice(None) if place.has_row_numbers else slice(place.first, place.first + num_rows)
        return self.keys[rows, :, : place.visible], self.values[rows, :, : place.visible]


@dataclass(slots=True)
class StaticPlacement(Placement):
    """The next pass writes to ``slots`` (rows, width) of ``rows`` (rows, 1), and reads ``visible`` slots.

    Attributes:
        has_row_numbers: attention finds the pass's rows in the whole buffer by their numbers.
    """

    rows: torch.Tensor = torch.empty(0)  # noqa: RUF009 - replaced before each pass
    slots: torch.Tensor = torch.empty(0)  # noqa: RUF009 - as above
    visible: int = 0
    has_row_numbers: bool = False


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """The inputs of a pass.

    Shapes: ids, positions and slots (rows, width); rows (rows, 1); masks (rows, 1, width, visible), or as a
    ``FixedMask`` has them; columns (columns,).
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    columns: torch.Tensor
    masks: dict[str, torch.Tensor]

    def padded(self, num_rows: int, has_row_numbers: bool) -> "StaticInputs":
        """Return the inputs with the last row repeated.

        With row numbers the copies read and write the last row itself, whose slots get the same numbers again.
        Otherwise they write to the rows that follow in the cache, and each node sees itself alone.
        """
        if num_rows == len(self.input_ids):
            return self
        numbers = torch.arange(num_rows, device=self.rows.device)
        order = numbers.clamp(max=len(self.input_ids) - 1)
        masks = {kind: mask[order] for kind, mask in self.masks.items()}
        for mask in () if has_row_numbers else masks.values():
            own = mask[len(self.input_ids) :].fill_(torch.finfo(mask.dtype).min)
            own.scatter_(3, self.slots[-1:, None, :, None].expand(*own.shape[:3], 1), 0.0)
        return StaticInputs(
            input_ids=self.input_ids[order],
            positions=self.positions[order],
            rows=self.rows[order] if has_row_numbers else self.rows[0] + numbers[:, None],
            slots=self.slots[order],
            columns=self.columns,
            masks=masks,
        )

    def owned(self) -> "StaticInputs":
        """Return these inputs with copies of the masks; all other tensors are made for one pass."""
        return replace(self, masks={kind: mask.clone() for kind, mask in self.masks.items()})

    def copy_(self, other: "StaticInputs") -> None:
        """Copy another pass's values into these tensors."""
        for name in ("input_ids", "positions", "rows", "slots", "columns"):
            getattr(self, name).copy_(getattr(other, name))
        for kind, mask in self.masks.items():
            mask.copy_(other.masks[kind])


class StaticBackend(HFBackend):
    """A transformers model driven with fixed shapes; refuses models and masks that don't allow them."""

    no_chains: ClassVar[str] = "the static backend has no chains of varying length"
    keeps_states: ClassVar[bool] = False
    widths: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)

    def _make_cache(self, num_layers: int) -> RaggedCache:
        self._placement = StaticPlacement()
        self._graphs = Graphs[StaticInputs](self.shapes.device)
        self._state: list[object] = []  # of the model that they run
        self._is_hooked = False
        return RaggedCache(num_layers, StaticLayer, self._placement, keeps_memory=True)

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
            inputs = self._prepared(layout)
            self.is_warm = True
            run = self._replayed if self._graphs.captures and not self._is_hooked else self._call
            logits, *states = run(inputs, layout.hidden)
        rows, columns = len(layout.lengths), len(layout.columns)
        return Output(logits[:rows, :columns], layout.columns, stacked([each[:rows] for each in states]), layout.hidden)

    def _prepared(self, layout: Layout) -> StaticInputs:
        """Make room for the next pass, and set where it writes; return its inputs."""
        place, first = self._placement, layout.first
        place.has_row_numbers = self.compiler.has_fixed_shapes and layout.attention is not None
        place.first, place.visible = first, slot_bucket(max(layout.lengths) + layout.width)
        # Growing moves the buffers and invalidates captured graphs, so they grow rarely and by large steps.
        place.num_slots = slot_bucket(max(place.num_slots, place.visible))
        place.num_rows = power_of_two(max(place.num_rows, first + len(layout.lengths)))
        for row, length in enumerate(layout.lengths, first):
            self._cache.reached[row] = max(self._cache.reached[row], length + layout.width)
        inputs = self._inputs(layout)
        # Requests end one by one: fewer numbers of rows are fewer graphs.
        num_rows = power_of_two(len(layout.lengths))
        is_last = first + len(layout.lengths) >= len(self._cache.lengths)  # rows after these aren't open
        if place.has_row_numbers or (is_last and first + num_rows <= place.num_rows):
            return inputs.padded(num_rows, place.has_row_numbers)
        return inputs

    def _replayed(self, inputs: StaticInputs, hidden: tuple[int, ...]) -> Outputs:
        """The logits and hidden states of a pass: a graph's replay, from the second pass of a shape on."""
        place, layers = self._placement, [layer for layer in self._cache.layers if layer.is_initialized]
        for layer in layers:
            layer.reserve(place.num_rows, place.num_slots)
        # Graphs write to rows that a tensor names, and read a slice that was fixed when they were captured.
        first = None if place.has_row_numbers else place.first
        num_masked = next(iter(inputs.masks.values())).shape[3]
        shape = first, *inputs.input_ids.shape, place.visible, num_masked, len(inputs.columns), hidden
        buffer = layers[0].keys if layers else None
        outputs = self._graphs.run(partial(self._call, hidden=hidden), inputs, shape, buffer)
        self.is_warm = self._graphs.is_warm
        return tuple(output.clone() for output in outputs)

    def _inputs(self, layout: Layout) -> StaticInputs:
        device, first, columns = self.shapes.device, layout.first, layout.columns
        starts = torch.tensor(layout.lengths, device=device)[:, None]
        multiple = self.shapes.row_multiple  # the head is a matrix product too: its rows are padded like others
        num_columns = min(-(-power_of_two(len(columns)) // multiple) * multiple, layout.width)
        padded = [*columns, *(columns[-1] for _ in range(num_columns - len(columns)))]
        return StaticInputs(
            input_ids=layout.input_ids,
            positions=layout.positions,
            rows=torch.arange(first, first + len(starts), device=device)[:, None],
            slots=starts + torch.arange(layout.width, device=device),
            columns=torch.tensor(padded, device=device),
            masks={kind: self._mask(layout, kind) for kind in self.shapes.attention},
        )

    def _mask(self, layout: Layout, kind: str) -> torch.Tensor:
        """Return the mask of a kind of layer in its static shape."""
        visible, dtype, device = self._placement.visible, self.shapes.dtype, self.shapes.device
        if self._placement.has_row_numbers:
            fixed = layout.masks[kind]
            assert isinstance(fixed, FixedMask), "the compiler has fixed shapes"
            return fixed.numbered_from(layout.first)
        shape = len(layout.lengths), 1, layout.width, visible
        mask = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device=device)
        if layout.masks:
            given = layout.masks[kind]
            mask[..., : given.shape[3]] = given
        else:  # one node after all slots, or a chain from the start: slots are positions
            mask.masked_fill_(torch.arange(visible, device=device) <= layout.positions[:, None, :, None], 0.0)
        return mask

    def _call(self, inputs: StaticInputs, hidden: tuple[int, ...] = ()) -> Outputs:
        self._placement.rows, self._placement.slots = inputs.rows, inputs.slots
        masks = inputs.masks
        mask = next(iter(masks.values())) if len(masks) == 1 else masks
        with self._attention(sees_all=True, name=self.compiler.attention if self._placement.has_row_numbers else None):
            return self._run(inputs.input_ids, inputs.positions, mask, inputs.columns, hidden)


def _place_of(tensor: torch.Tensor) -> object:
    """Return a plain tensor's address; other kinds have none, or stop being packed when they are asked for it."""
    return tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor


def _place_of_all(model: PreTrainedModel) -> str:
    """Return the type of the device that holds a whole model, "" if several do."""
    devices = {weight.device for weight in chain(model.parameters(), model.buffers())}
    return next(iter(devices)).type if len(devices) == 1 else ""
