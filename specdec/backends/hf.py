"""Causal language models of transformers, driven through their public forward, cache and masks."""

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Self

import torch
from transformers import PreTrainedModel

from specdec.backends.base import NO_OPTIONS, Backend, BackendOptions, Examination, KVBlock
from specdec.backends.cache import RaggedCache
from specdec.backends.chain_passes import ChainPasses, mask_argument
from specdec.backends.grouped_attention import NAME as GROUPED
from specdec.backends.grouped_attention import register as register_grouped
from specdec.backends.hidden_states import HiddenStates, stacked
from specdec.backends.inputs import Inputs, Outputs
from specdec.backends.output import Output
from specdec.backends.row_inputs import NO_ARGUMENTS, RowInputs
from specdec.backends.states.state_cache_choice import state_cache_of
from specdec.backends.states.state_costs import StateCosts
from specdec.backends.supported_passes import SupportedPasses, assumed_passes
from specdec.backends.wide_passes import WidePasses
from specdec.costs import CostModel, Costs
from specdec.errors import ModelError
from specdec.inputs.base import PromptInputs
from specdec.layout import Compiler, Layout
from specdec.machine.forks import ONE_THREAD, refuse_fork
from specdec.models.architecture import cache_argument, name_of, state_kinds
from specdec.models.attention_switch import switched, why_fixed
from specdec.models.fused_attention import without_cudnn
from specdec.models.gradients import runs_in_inference_mode, without_gradients
from specdec.models.notes import lock_of
from specdec.models.rejected_inputs import rejects
from specdec.models.weights.layers import is_sharded


class HFBackend(Backend):
    """A transformers model with a cache of its own.

    Args:
        passes: those that the model supports (default: ``assumed_passes``). ``probes.examination.examine`` finds out.

    Attributes:
        model: the model whose layers run.
        compiler: the compiler of the layouts.
        passes: those that the model supports.
        no_chains: why this backend refuses models that support chains only, or "" if it doesn't.
        keeps_states: True if this backend keeps recurrent and convolutional states; otherwise it refuses such models.
        widths: padding widths in ascending order. Wider passes are not padded; an empty tuple disables padding.
        is_alone: False if other processes run the same passes at the same time, as for sharded models; the examination
            then ignores the clock.
    """

    runs_layers: ClassVar[bool] = True
    takes_inputs: ClassVar[bool] = True
    holds_prefixes: bool = True
    no_chains: ClassVar[str] = ""
    keeps_states: ClassVar[bool] = True
    widths: ClassVar[tuple[int, ...]] = ()
    is_alone: ClassVar[bool] = True

    def __init__(self, model: PreTrainedModel, compiler: Compiler, passes: SupportedPasses | None = None) -> None:
        config = model.config.get_text_config()
        self.model, self.compiler = model, compiler
        self.passes = passes = passes or self.assumed_passes(model)
        self.shapes, self.examination = passes.shapes, Examination(passes.reason)
        self._config = config
        self._parameters = inspect.signature(model.forward).parameters
        self._wide = WidePasses(model, not passes.shapes.takes_drafts, passes.reads_rows_alone)
        self._cache_argument = cache_argument(model)
        self._cache = self._make_cache(config.num_hidden_layers)
        self._row_inputs = RowInputs()
        self._first, self._kept = 0, range(0)  # row of the last pass, and those that were committed last
        self._process = os.getpid()
        self._is_inference = runs_in_inference_mode(model)
        self._hidden_states = HiddenStates(model)
        # Grouped attention calls torch's fused one where it isn't faster.
        self._has_fused_attention = config._attn_implementation == "sdpa" and not why_fixed(model)
        register_grouped()
        compiler.register()

    def close(self) -> None:
        self._cache = self._make_cache(self._config.num_hidden_layers)

    def in_model(self) -> AbstractContextManager[None]:
        """Return the context in which the model's modules are those that passes run; a backend may replace some."""
        return nullcontext()

    def _make_cache(self, num_layers: int) -> RaggedCache:
        if not state_kinds(self._config):
            return RaggedCache(num_layers)
        return state_cache_of(self.model, num_layers, self._wide)

    @classmethod
    def assumed_passes(cls, model: PreTrainedModel) -> SupportedPasses:
        """Return the passes that a model supports as far as is known without running it."""
        return assumed_passes(model, cls.widths, cls.keeps_states)

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, PreTrainedModel)

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: BackendOptions = NO_OPTIONS) -> Self:
        if not isinstance(model, PreTrainedModel):
            raise ModelError(
                f"the hf backend supports a transformers PreTrainedModel, not an object of type {type(model).__name__}"
            )
        if is_sharded(model) and cls.is_alone:
            raise ModelError(
                f"{name_of(model)} is sharded over processes, which must all run each pass: use backend='distributed', "
                "and whole models for drafts"
            )
        return cls(model, compiler)

    def refresh(self) -> None:
        if torch.get_num_threads() > 1:
            refuse_fork(self._process, ONE_THREAD)

    def open(self, capacity: int) -> None:
        self.refresh()
        self._cache.open(capacity)

    def set_inputs(self, row: int, inputs: PromptInputs | None) -> None:
        self._row_inputs.set(row, inputs)

    def expect(self, capacities: Sequence[int]) -> None:
        self._cache.expect(capacities)

    def forward(self, layout: Layout) -> Output:
        self._first = layout.first
        if not self.shapes.takes_trees:
            return self._pass_over_chains(layout)
        return self._pass(layout)

    def _pass(self, layout: Layout) -> Output:
        self._cache.place(range(layout.first, layout.first + len(layout.lengths)), layout.lengths, layout.width)
        columns, wanted = layout.columns, None
        if (
            layout.width > 1
        ):  # the head is a matrix product too: its rows are padded to the multiple that preserves their bits
            missing = -len(columns) % self.shapes.row_multiple
            repeated = [*columns, *(columns[-1] for _ in range(missing))]
            wanted = torch.tensor(repeated, device=self.shapes.device)
        device = self.shapes.device
        masks = {kind: mask.to(device) for kind, mask in layout.masks.items()}
        positions, more = self._row_inputs.arguments(layout, device)
        inputs = Inputs(layout.input_ids.to(device), positions.to(device), masks, wanted)
        with self._attention(bool(layout.masks) or layout.width == 1, layout.attention):
            if more:
                mask = mask_argument(masks)
                logits, *states = self._run(inputs.input_ids, inputs.positions, mask, wanted, layout.hidden, more)
            else:
                logits, *states = self._outputs(inputs, max(layout.lengths), layout.hidden)
        return Output(logits[:, : len(columns)], columns, stacked(states), layout.hidden)

    def _outputs(self, inputs: Inputs, length: int, layers: tuple[int, ...]) -> Outputs:
        """Return the logits of a pass, ``(rows, columns, vocab)``, and the hidden states of each layer.

        Args:
            length: the longest row's committed tokens.
        """
        return self._run(inputs.input_ids, inputs.positions, mask_argument(inputs.masks), inputs.columns, layers)

    def _pass_over_chains(self, layout: Layout) -> Output:
        """Run chains, in as many passes as the cache wants."""
        passes = ChainPasses(layout, self.shapes)
        with lock_of(self.model):  # some models hold the states of a pass themselves
            for parts in self._cache.passes(passes.chains):
                inputs = passes.inputs(parts)
                mask = mask_argument(inputs.masks)
                positions, more = self._row_inputs.arguments_of(parts, inputs.positions, self.shapes.device)
                with self._attention(bool(inputs.masks)), self._cache.pass_context():
                    ids, columns = inputs.input_ids, inputs.columns
                    logits, *states = self._run(ids, positions, mask, columns, layout.hidden, more)
                passes.add(parts, logits, states)
        return passes.output()

    def _run(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Any,
        columns: torch.Tensor | None,
        layers: Sequence[int] = (),
        more: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> Outputs:
        """Return the model's logits, ``(rows, columns, vocab)``, and each layer's states, ``(rows, width, size)``.

        ``columns=None`` means all; ``more`` are the arguments for rows with inputs.
        """
        extra: dict[str, Any] = {self._cache_argument: self._cache}
        if "position_ids" in self._parameters:
            extra["position_ids"] = positions
        keeps_columns = columns is not None and "logits_to_keep" in self._parameters
        if keeps_columns:
            extra["logits_to_keep"] = columns
        extra |= more
        hooked = layers if self._hidden_states.is_able else ()
        if layers and not hooked:
            extra["output_hidden_states"] = True
        with without_gradients(self._is_inference), self._hidden_states.taken(hooked) as states:
            with rejects(self.model) if more else nullcontext():
                output = self.model(input_ids, attention_mask=mask, use_cache=True, return_dict=True, **extra)
            logits: torch.Tensor = output.logits
            taken = [states[layer] if hooked else output.hidden_states[layer] for layer in layers]
            return (logits if columns is None or keeps_columns else logits[:, columns]), *taken

    @contextmanager
    def _attention(self, sees_all: bool, name: str | None = None) -> Iterator[None]:
        """Lock the model for one pass, and temporarily use the attention ``name``, or grouped attention if possible.

        Args:
            sees_all: the masks are complete, or there is a single node, so the model's own causal mask isn't needed.
        """
        if name is None and sees_all and self._has_fused_attention:
            name = GROUPED
        attention = nullcontext() if name is None else switched(self._config, name)
        device = self.shapes.device
        with lock_of(self.model), attention, without_cudnn(device), self.compiler.operations(device):
            yield

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        with without_gradients(self._is_inference):
            self._kept = range(self._first, self._first + len(paths))
            for row, path in zip(self._kept, paths, strict=True):
                self._cache.commit(row, path)

    def cost_model(self, measured: Costs, max_size: int, learns: bool) -> CostModel:
        if not state_kinds(self._config):
            return super().cost_model(measured, max_size, learns)
        return StateCosts(measured, max_size, learns, lambda: [self._cache.num_pending(row) for row in self._kept])

    def rollback(self, row: int, length: int) -> None:
        self._cache.rollback(row, length)

    def release(self, row: int) -> None:
        self._kept = range(0)
        self._row_inputs.release(row, self.num_rows - 1)
        with without_gradients(self._is_inference):
            self._cache.release(row)

    def trim(self) -> bool:
        with without_gradients(self._is_inference):
            return self._cache.trim()

    def clear(self, row: int) -> None:
        with without_gradients(self._is_inference):
            self._cache.clear(row)

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        with without_gradients(self._is_inference):
            return self._cache.copy_block(row, start, stop)

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        with without_gradients(self._is_inference):
            self._cache.append_blocks(row, held)

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        return self._cache.bytes_for(capacities)

    @property
    def num_rows(self) -> int:
        return len(self._cache.lengths)

    @property
    def row_bytes(self) -> int:
        return self._cache.row_bytes + self._row_inputs.row_bytes
