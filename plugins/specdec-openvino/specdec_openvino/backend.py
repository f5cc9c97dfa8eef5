"""The backend: specdec's rows and layouts, passed on to a compiled OpenVINO graph with a paged cache."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.utils.logging import tqdm

from specdec import ModelError
from specdec.backends.architecture import attention_kinds, name_of, position_limit, shapes_of
from specdec.backends.base import Backend, BackendOptions, Output
from specdec.cache_folder import cache_folder
from specdec.layout import Compiler, Layout, Shapes, Window
from specdec.loading import checked_name, load_pretrained, load_pretrained_tokenizer
from specdec.probes.examination import why_fixed
from specdec.probes.findings import notes_of, remembered
from specdec.probes.selftest import probe
from specdec.target import Target
from specdec_openvino.conversion import convert, refusal
from specdec_openvino.engine import Compiled, Passes
from specdec_openvino.filling import Filling
from specdec_openvino.kept import Kept, name_of_folder, name_of_model
from specdec_openvino.model import OpenVINOModel
from specdec_openvino.options import OpenVINOOptions, openvino_type

_FOLDER, _EXPORTED = "openvino", "openvino_model.xml"
_CHUNK = 512
# Tokens of a row: one alone goes another way through the engine's kernels; those of a chain of two and more were found
# to have the same bits in any number of them, which the probe tries on every machine.
_LEAST_EXACT = 2
_SIZES = 1, 6, 8, 12, 16, 20, 24, 28, 32  # of passes; six tokens take about as long as two
_NUM_EXPERTS = "num_experts", "num_local_experts", "n_routed_experts"
_ROUNDS = "the engine rounds a token by the shape of its pass"


class OpenVINOBackend(Backend):
    """A transformers model, converted once, whose passes OpenVINO computes.

    Rows of a batch are read and written where they lie, without padding, and rejected nodes are overwritten by the next
    pass: the cache holds committed tokens alone. Models with windows are driven with chains, since paged attention
    counts a window in slots, which of a tree are no positions.
    """

    Options: ClassVar[type[BackendOptions]] = OpenVINOOptions

    def __init__(
        self,
        compile_graph: Callable[[bool], Compiled],
        shapes: Shapes,
        sizes: Sequence[int],
        lossy: str,
        is_exact: bool,
    ) -> None:
        self.inexact = lossy or ("" if is_exact else _ROUNDS)
        self._compile, self._compiled = compile_graph, compile_graph(False)
        self._blocks = self._compiled.blocks()
        least = _LEAST_EXACT if is_exact else 1
        self._filling = Filling(least, sizes)
        takes_trees = shapes.takes_trees and not is_exact
        self.shapes = replace(shapes, takes_trees=takes_trees, filled_to=self._filling.sizes)
        self._passes = Passes(self._compiled, self._blocks, self._filling)
        self._first = 0

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, PreTrainedModel | OpenVINOModel)

    @classmethod
    def read(cls, name: str, tokenizer: Any | None, options: OpenVINOOptions) -> tuple[Any, Any]:
        name = checked_name(name)
        folder = Path(name)
        if not folder.is_dir():  # a hub's: transformers knows where it keeps that
            return load_pretrained(name, tokenizer)
        if (folder / _EXPORTED).is_file() and not any(folder.glob("*.safetensors")):
            raise ModelError(
                f"can't load {name!r}: an export of OpenVINO's can't be held against the model's own forward; give "
                "the folder that it was exported from"
            )
        try:
            config = AutoConfig.from_pretrained(name)
        except (OSError, ValueError):  # the usual way says what is wrong
            return load_pretrained(name, tokenizer)
        kept = Kept.find(_folder() / name_of_folder(folder, "auto"))
        if kept is None or not kept.is_proven:
            model, tokenizer = load_pretrained(name, tokenizer)
            kept = _converted(model, name_of_folder(folder, "auto"))
            if not kept.is_proven:
                _prove(model, kept, options)
                kept = kept.proven()
        else:
            tokenizer = load_pretrained_tokenizer(name) if tokenizer is None else tokenizer
        return OpenVINOModel(name, kept, config, _generation_config(folder), _dtype_of(config)), tokenizer

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: OpenVINOOptions = OpenVINOOptions()) -> Self:  # noqa: B008
        if isinstance(model, OpenVINOModel):
            return cls._driving(model, model.kept, _shapes_of_config(model), options, compiler.bit_exact)
        if not isinstance(model, PreTrainedModel):
            raise ModelError(
                f"the openvino backend drives a transformers PreTrainedModel, or the folder of one, not a "
                f"{type(model).__name__}"
            )
        shapes = _on_cpu(shapes_of(model, ()))
        openvino_type(shapes.dtype)
        kept = remembered(model, "openvino", lambda: _converted(model, name_of_model(model)))
        driving = cls._driving(model, kept, shapes, options, compiler.bit_exact)
        if not kept.is_proven:
            remembered(model, ("openvino", "proof"), lambda: _prove(model, kept, options))
        return driving

    @classmethod
    def _driving(cls, model: Any, kept: Kept, shapes: Shapes, options: OpenVINOOptions, is_exact: bool) -> Self:
        def compile_graph(gives_hidden: bool) -> Compiled:
            return _compiled(model, kept, options, shapes.dtype, gives_hidden)

        return cls(compile_graph, shapes, _sizes_for(model.config), options.lossy(shapes.dtype), is_exact)

    def close(self) -> None:
        del self._passes, self._blocks, self._compiled

    def open(self, capacity: int) -> None:
        self._blocks.open()

    def forward(self, layout: Layout) -> Output:
        self._first = layout.first
        if layout.hidden and not self._compiled.gives_hidden:  # rarely wanted, and each takes memory in every pass
            self._compiled = self._compile(True)
            self._passes = Passes(self._compiled, self._blocks, self._filling)
        logits, hidden = self._passes.run(layout)
        return Output(logits, layout.columns, hidden)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths, self._first):
            self._blocks.keep(row, path)

    def rollback(self, row: int, length: int) -> None:
        self._blocks.rollback(row, length)

    def release(self, row: int) -> None:
        self._blocks.release(row)

    def clear(self, row: int) -> None:
        self._blocks.clear(row)

    def cache_bytes(self, capacities: Sequence[int]) -> int:
        return self._blocks.bytes_for(capacities)

    @property
    def num_rows(self) -> int:
        return len(self._blocks.rows)

    @property
    def row_bytes(self) -> int:
        return self._blocks.bytes_for(()) // max(1, self.num_rows)


def _folder() -> Path:
    return cache_folder() / _FOLDER


def _converted(model: PreTrainedModel, name: str) -> Kept:
    """A model's conversion, as it was kept, or made now.

    Raises:
        ModelError: for a model that can't be converted, with the reason; where the folder can't be written.
    """
    kept = Kept.find(_folder() / name)
    if kept is not None:
        return kept
    chunked = any(window is not None and window.kind == "chunked" for window in shapes_of(model, ()).attention.values())
    reason = "its attention is to chunks, which paged attention has no windows for" if chunked else why_fixed(model)
    if reason:
        raise refusal(model, reason)
    with tqdm(total=2, desc="converting to OpenVINO, once", leave=False) as progress:
        converted = convert(model)
        progress.update()
        return Kept.save(converted, _folder() / name)


def _compiled(model: Any, kept: Kept, options: OpenVINOOptions, dtype: torch.dtype, gives_hidden: bool) -> Compiled:
    """The model's compiled graph, which all of its backends share while there is one."""
    notes = notes_of(model)
    question = kept.folder, options, options.num_threads, gives_hidden
    with notes.lock:
        shared = notes.facts_in("openvino").setdefault("compiled", weakref.WeakValueDictionary())
        compiled: Compiled | None = shared.get(question)
        if compiled is None:
            compiled = shared[question] = Compiled(kept, options, dtype, gives_hidden)
        return compiled


def _prove(model: PreTrainedModel, kept: Kept, options: OpenVINOOptions) -> None:
    """Hold the passes of a conversion, in the model's own precision, against the model's own forward.

    Raises:
        ModelError: where they differ by more than rounding does.
    """
    from specdec.masks.dense import DenseCompiler

    own = OpenVINOOptions(device=options.device)
    backend = OpenVINOBackend._driving(model, kept, _on_cpu(shapes_of(model, ())), own, is_exact=False)
    tried = probe(Target(backend, DenseCompiler()), model, tries_first_layers=False)
    if tried.fault:
        raise ModelError(
            f"{name_of(model)} has other logits once it is converted to OpenVINO: {tried.fault}; use backend='hf'"
        )


def _on_cpu(shapes: Shapes) -> Shapes:
    """The shapes, with trees for models without windows: logits are read from the engine on the CPU."""
    return _with_trees(shapes.vocab_size, shapes.max_positions, shapes.attention, shapes.dtype, shapes.num_layers)


def _shapes_of_config(model: OpenVINOModel) -> Shapes:
    config = model.config.get_text_config()
    kinds = attention_kinds(config, model.name)
    return _with_trees(config.vocab_size, position_limit(config), kinds, model.dtype, config.num_hidden_layers)


def _with_trees(
    vocab_size: int, max_positions: int | None, attention: Any, dtype: torch.dtype, num_layers: int | None
) -> Shapes:
    windows: list[Window] = [window for window in attention.values() if window is not None]
    return Shapes(
        vocab_size=vocab_size,
        max_positions=max_positions,
        takes_trees=not windows,
        attention=attention,
        dtype=dtype,
        device=torch.device("cpu"),
        chunk=_CHUNK,
        num_layers=num_layers,
    )


def _sizes_for(config: Any) -> tuple[int, ...]:
    """The sizes that passes are filled up to; none for mixtures, whose experts are fetched for each token."""
    text = config.get_text_config()
    return () if any(getattr(text, name, None) for name in _NUM_EXPERTS) else _SIZES


def _generation_config(folder: Path) -> Any:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:  # it has none
        return None


def _dtype_of(config: Any) -> torch.dtype:
    dtype = getattr(config, "dtype", None) or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
