"""The backend: runs specdec's layouts on a compiled OpenVINO graph with a paged cache."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, ClassVar, Self

import openvino as ov
import torch
from transformers import PreTrainedModel

from specdec import ModelError
from specdec.backends import Backend, BackendOptions, Examination, Output
from specdec.costs import CostModel, Costs
from specdec.heads import HeadRunners
from specdec.layout import Compiler, Layout, Padding, Shapes
from specdec.machine import TORCH_IN_ONE_THREAD, refuse_fork
from specdec.masks import DenseCompiler
from specdec.models import ModelSource, attention_kinds, name_of, shapes_of
from specdec.models.position_limit import position_limit
from specdec.runtime.probes import probe
from specdec.target import Target
from specdec_openvino import loading
from specdec_openvino.engine.change_costs import ChangeCosts
from specdec_openvino.engine.filling import Filling
from specdec_openvino.engine.graphs import Graphs
from specdec_openvino.engine.model_engine import ModelEngine
from specdec_openvino.engine.pass_sizes import pass_sizes
from specdec_openvino.engine.trial import trial_logits
from specdec_openvino.heads.runner import OpenVINORunners
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.options import OpenVINOOptions, check_dtype
from specdec_openvino.preference import why_not
from specdec_openvino.sources.base import Prove
from specdec_openvino.sources.export_proof import PlainExport

_CHUNK = 512
# Tokens of a row: the engine computes a single one by another kernel. In chains of two or more, up to a length that
# depends on the processor, tokens were found to have the same bits, which the probe tests on every machine.
_LEAST_EXACT = 2
# Between drafts a single token is padded too: a change of sizes takes longer than what that saves, unless shapes are
# static or the rounded weights take hardly any time.
_LEAST_PADDED = 2
_TRIED = 48, 1, 2, 8, 24, 1  # nodes of passes that compare two graphs
_ROUNDS = "the engine's rounding of a token depends on the shape of its pass"


class OpenVINOBackend(Backend):
    """A transformers model, converted once and run by OpenVINO.

    Rows of a batch are read and written in place, without padding, and the next pass overwrites rejected nodes, so the
    cache has committed tokens only. Models with windows are driven with chains, since paged attention counts windows in
    slots, which aren't positions in a tree.
    """

    Options: ClassVar[type[BackendOptions]] = OpenVINOOptions
    version: ClassVar[str] = f"{metadata.version('specdec-openvino')} on OpenVINO {ov.__version__}"
    is_preferred: ClassVar[bool] = True

    def __init__(self, engine: ModelEngine, is_exact: bool) -> None:
        self._engine, self._is_exact = engine, is_exact
        least, sizes = _LEAST_EXACT if is_exact else 1, pass_sizes(engine.model.config, engine.options.device)
        has_single = engine.options.static_sizes or engine.options.rounding is not None
        smallest = least if has_single else _LEAST_PADDED
        padding = Padding(tuple(size for size in sizes if size >= smallest), least)
        most_tokens = engine.most_tokens(least) if is_exact else None
        self._filling = Filling(padding, engine.options.static_sizes, most_tokens)
        self.shapes = replace(
            engine.shapes,
            takes_trees=engine.shapes.takes_trees and not is_exact,
            padding=padding,
        )
        lossy = engine.options.lossy(engine.shapes.dtype)
        self.examination = Examination(inexact="" if is_exact else _ROUNDS, lossy=lossy)
        self._blocks = engine.compiled(frozenset()).blocks()
        self._passes = engine.passes(frozenset(), self._blocks, self._filling)
        self._first = 0
        self._process = os.getpid()

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, PreTrainedModel | OpenVINOModel)

    @classmethod
    def declines(cls, source: ModelSource) -> str:
        return why_not(source, OpenVINOOptions().device)

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Any | None, options: OpenVINOOptions) -> tuple[Any, Any]:
        return loading.read(source, tokenizer, options, _prover(options))

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: OpenVINOOptions = OpenVINOOptions()) -> Self:  # noqa: B008
        if isinstance(model, OpenVINOModel):
            engine = ModelEngine(
                model, model.graphs, options, _shapes_of_config(model.config, model.name, model.graphs)
            )
        elif isinstance(model, PreTrainedModel):
            loading.check(options)
            shapes = _driven(shapes_of(model, ()))
            check_dtype(shapes.dtype, options.device)
            engine = ModelEngine(model, loading.graphs_of(model, options, _prover(options)), options, shapes)
        else:
            raise ModelError(
                f"the openvino backend supports a transformers PreTrainedModel, or the folder of one, not an object of "
                f"type {type(model).__name__}"
            )
        return cls(engine, compiler.bit_exact)

    def close(self) -> None:
        del self._passes, self._blocks, self._engine

    def open(self, capacity: int) -> None:
        refuse_fork(self._process, TORCH_IN_ONE_THREAD)
        self._blocks.open()

    def forward(self, layout: Layout) -> Output:
        self._first = layout.first
        self.expect_hidden(layout.hidden)
        logits, hidden = self._passes.run(layout)
        return Output(logits, layout.columns, hidden, layout.hidden)

    def expect_hidden(self, layers: Collection[int]) -> None:
        """Replace the graph by one that has these hidden states among its outputs too, in seconds, if it lacks any.

        Raises:
            ModelError: in exact numerics, if that graph has logits of other bits.
        """
        before = self._passes.hidden
        if layers and not self._passes.num_states:
            raise ModelError(
                f"{self._engine.model.name}, an OpenVINO export, gives no hidden states: give its checkpoint"
            )
        wanted = before | {self._passes.number_of(layer) for layer in layers}
        if wanted == before:
            return
        expected = self._tried() if self._is_exact else []
        try:
            self._use(wanted)
            if expected and not all(map(torch.equal, self._tried(), expected)):
                raise ModelError(
                    f"OpenVINO computes {name_of(self._engine.model)} with other bits where it gives hidden states: "
                    "use numerics='fast', or backend='hf'"
                )
        except ModelError:
            self._use(before)
            raise

    def _use(self, hidden: frozenset[int]) -> None:
        vars(self).pop("_passes", None)  # two graphs at once would hold the matrices twice
        self._passes = self._engine.passes(hidden, self._blocks, self._filling)

    def _tried(self) -> list[torch.Tensor]:
        """The logits of a few passes over a row of their own, one after another."""
        blocks = self._engine.compiled(self._passes.hidden).blocks()
        passes = self._engine.passes(self._passes.hidden, blocks, self._filling)
        return trial_logits(passes, blocks, _TRIED, self.shapes.vocab_size)

    def extension(self, contract: type[Any]) -> Any:
        return OpenVINORunners(self._engine.options) if contract is HeadRunners else None

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths, self._first):
            self._blocks.commit(row, path)

    def rollback(self, row: int, length: int) -> None:
        self._blocks.rollback(row, length)

    def release(self, row: int) -> None:
        self._blocks.release(row)
        if self._blocks.is_empty:
            self._passes.unbind()
        if not self._blocks.rows:
            self._engine.graphs.let_go()

    def clear(self, row: int) -> None:
        self._blocks.clear(row)

    def cost_model(self, measured: Costs, max_size: int, learns: bool) -> CostModel:
        return ChangeCosts(measured, max_size, learns, self._filling)

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        return self._blocks.bytes_for(capacities)

    @property
    def num_rows(self) -> int:
        return len(self._blocks.rows)

    @property
    def row_bytes(self) -> int:
        return self._blocks.bytes_for(()) // max(1, self.num_rows)


def _prover(options: OpenVINOOptions) -> Prove:
    """Return a function that compares a conversion, in the model's own precision, with the model's own forward.

    It raises a ModelError if they differ by more than rounding.
    """
    own = options.model_copy(update={"precision": "model", "kv": "model", "weights": "model", "static_sizes": 0})

    def prove(model: PreTrainedModel | PlainExport, graphs: Graphs) -> None:
        if isinstance(model, PlainExport):
            shapes = _shapes_of_config(model.config, model.name, graphs)
            fault, name, remedy = model.fault_of(target_of(model, graphs, shapes)), model.name, "give its checkpoint"
        else:
            target = target_of(model, graphs, _driven(shapes_of(model, ())))
            fault = probe(target, model, tries_first_layers=False).fault
            name, remedy = name_of(model), "use backend='hf'"
        if fault:
            raise ModelError(f"{name} has other logits after its conversion to OpenVINO: {fault}; {remedy}")

    def target_of(model: Any, graphs: Graphs, shapes: Shapes) -> Target:
        return Target(OpenVINOBackend(ModelEngine(model, graphs, own, shapes), is_exact=False), DenseCompiler())

    return prove


def _driven(shapes: Shapes) -> Shapes:
    """Return a model's shapes for this engine: logits on the CPU, and chains only if the model has windows."""
    takes_trees = not any(shapes.attention.values())
    return replace(shapes, takes_trees=takes_trees, device=torch.device("cpu"), chunk=_CHUNK, packs_rows=True)


def _shapes_of_config(config: Any, name: str, graphs: Graphs) -> Shapes:
    config, facts = config.get_text_config(), graphs.conversion.facts
    windows = {layer.window for layer in facts.layers}
    attention = attention_kinds(config, name)
    expected = {0 if window is None else window.size for window in attention.values()}
    if windows != expected:
        raise ModelError(
            f"{name} has windows of {sorted(windows)} tokens, and its config.json says {sorted(expected)}: use its "
            "checkpoint with backend='hf'"
        )
    return _driven(
        Shapes(
            vocab_size=config.vocab_size,
            max_positions=position_limit(config),
            takes_trees=True,
            attention=attention,
            dtype=facts.dtype,
            device=torch.device("cpu"),
            num_layers=config.num_hidden_layers,
        )
    )
