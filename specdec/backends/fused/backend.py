"""The ``fused`` backend: static passes whose layers are a few kernels each."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch
from transformers import PreTrainedModel

from specdec.backends.base import NO_OPTIONS, BackendOptions
from specdec.backends.fused.layer import FusedHead, FusedLayer, FusedNorm, LayerKernels
from specdec.backends.fused.parts import LinearWeights
from specdec.backends.fused.reading import LayerReader, NormReader, matrix_of
from specdec.backends.hidden_states import HiddenStates
from specdec.backends.inputs import Outputs
from specdec.backends.static import StaticBackend
from specdec.backends.supported_passes import SupportedPasses
from specdec.errors import ModelError
from specdec.layout import Compiler
from specdec.machine.cuda_graphs import GraphInputs
from specdec.models.architecture import cache_argument, name_of
from specdec.models.independent_rows import has_kernels
from specdec.models.notes import lock_of
from specdec.tree import ROOT, DraftTree

_LEAST_CAPABILITY = 8, 0  # of GPUs: kernels need bfloat16 and asynchronous copies
_CONTEXT = 300  # tokens, more than a chunk of attention, before the passes that are timed
_MANY, _NUM_STEPS = 16, 64  # nodes of each second step
_NUM_PASSES, _NUM_UNTIMED = 8, 3  # of each size; of these the first compiles kernels, and the second captures


class FusedBackend(StaticBackend):
    """A static backend that replaces a model's layers, last norm and head during its passes.

    Everything else, such as embeddings, angles and what the model does to logits, remains the model's. Weights are
    neither copied nor moved. Layers that aren't understood are refused.
    """

    def __init__(self, model: PreTrainedModel, compiler: Compiler, passes: SupportedPasses | None = None) -> None:
        if compiler.attention is None or not compiler.has_fixed_shapes:
            raise ModelError(
                "fused layers need masks of a fixed shape, with attention of their own: use backend='static'"
            )
        super().__init__(model, compiler, passes)
        self._read()

    replaces_layers: ClassVar[bool] = True

    @classmethod
    def accepts(cls, model: object) -> bool:
        """Return True for a model that the static backend accepts, on a GPU that has the kernels."""
        return super().accepts(model) and isinstance(model, PreTrainedModel) and cls._serves(model.device)

    @classmethod
    def load(cls, model: object, compiler: Compiler, options: BackendOptions = NO_OPTIONS) -> Self:
        if isinstance(model, PreTrainedModel) and not cls._serves(model.device):
            raise ModelError("the fused backend needs Triton and a GPU of compute capability 8.0 or more: use 'static'")
        return super().load(model, compiler, options)

    @classmethod
    def _serves(cls, device: torch.device) -> bool:
        return has_kernels(device) and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY

    def _read(self) -> None:
        """Make what replaces the model's parts: a module, the name of its child, and the child's replacement.

        Raises:
            ModelError: if a part isn't understood.
        """
        found, head = HiddenStates(self.model), self.model.get_output_embeddings()
        kernels, attention, argument = self._kernels(), str(self.compiler.attention), cache_argument(self.model)
        try:
            if not found.is_able:
                raise ModelError("it has no single list of layers")
            readers = [LayerReader(layer, number) for number, layer in enumerate(found.layers)]
            layers = [FusedLayer(parts, kernels, attention, argument) for parts in readers]
            self._fused: list[tuple[Any, str, torch.nn.Module]] = [
                (found.holder, _name_of(found.holder, found.layers), torch.nn.ModuleList(layers)),
                (found.holder, "norm", FusedNorm(NormReader(found.holder.norm), kernels)),
            ]
            if isinstance(matrix_of(head), LinearWeights):
                self._fused.append((self.model, _name_of(self.model, head), FusedHead(head, kernels)))
        except (ModelError, AttributeError) as error:
            why = f"the layers of {name_of(self.model)} can't be fused: {error}; use backend='static'"
            raise ModelError(why) from error
        self._own_states = found
        with self.in_model():
            self._fused_states = HiddenStates(self.model)

    @classmethod
    def _kernels(cls) -> LayerKernels:
        from specdec.backends.fused import kernels  # Triton is there with torch for CUDA alone

        return kernels

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the model run the replacements in the block."""
        with lock_of(self.model):
            originals = [(holder, name, getattr(holder, name)) for holder, name, _ in self._fused]
            try:
                for holder, name, fused in self._fused:
                    setattr(holder, name, fused)
                yield
            finally:
                for holder, name, original in originals:
                    setattr(holder, name, original)

    def refresh(self) -> None:
        """Read the model's parts again if its modules have been replaced or changed."""
        state = self._state
        super().refresh()
        if self._state is not state:
            self._read()

    def why_slow(self) -> str:
        """Return why the model's own layers are faster than the fused ones, or "".

        Measured by passes as of a prompt of 256 tokens and 64 steps. On a machine's first load, kernels are compiled.
        """
        own = StaticBackend(self.model, self.compiler, self.passes)
        try:
            mine, others = (1e3 * _seconds_of_passes(backend) for backend in (self, own))
        finally:
            own.close()
        return f"a prompt and {_NUM_STEPS} steps take {mine:.0f} ms, {others:.0f} ms otherwise" if others < mine else ""

    def _call(self, inputs: GraphInputs, *options: Any, **named: Any) -> Outputs:
        # With hooks, or a layout of another compiler, the layers are the model's.
        if self._is_hooked or not self._placement.has_row_numbers:
            self._hidden_states = self._own_states
            return super()._call(inputs, *options, **named)
        self._hidden_states = self._fused_states
        with self.in_model():
            return super()._call(inputs, *options, **named)


def _seconds_of_passes(backend: StaticBackend) -> float:
    """Return the seconds of a prompt's chunk, and of steps of one and of several nodes, after a context."""
    total, shapes = 0.0, backend.shapes
    chunk = min(shapes.chunk, shapes.context_length)
    context = min(_CONTEXT, shapes.context_length - chunk)
    backend.open(context + chunk)
    try:
        for num_nodes, times in ((1, _NUM_STEPS // 2), (_MANY, _NUM_STEPS // 2), (chunk, 1)):
            tree = DraftTree(0)
            tree.add_chain(ROOT, [0] * (num_nodes - 1))
            if times == 1:  # a prompt's tokens are no candidates
                tree.wanted = (ROOT,)
            layout, seconds = backend.compiler.compile([tree], [context], shapes), list[float]()
            for _ in range(_NUM_PASSES):
                began = time.perf_counter()
                backend.forward(layout).top_ids(0)
                seconds.append(time.perf_counter() - began)
            total += times * min(seconds[_NUM_UNTIMED:])
    finally:
        backend.release(0)
    return total


def _name_of(holder: torch.nn.Module, child: torch.nn.Module | None) -> str:
    for name, each in holder.named_children():
        if each is child:
            return name
    raise ModelError(f"its {type(holder).__name__} doesn't hold a {type(child).__name__} itself")
