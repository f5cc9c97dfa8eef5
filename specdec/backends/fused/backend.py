"""The ``fused`` backend: static passes whose layers are a few kernels each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.backends.fused.layer import FusedHead, FusedLayer, FusedNorm, LayerKernels
from specdec.backends.fused.reading import LayerReader, NormReader
from specdec.backends.hidden_states import HiddenStates
from specdec.backends.inputs import Outputs
from specdec.backends.static import StaticBackend, StaticInputs
from specdec.backends.supported_passes import SupportedPasses
from specdec.errors import ModelError
from specdec.layout import Compiler
from specdec.models.architecture import cache_argument, name_of
from specdec.models.independent_rows import has_kernels
from specdec.models.notes import lock_of

_LEAST_CAPABILITY = 8, 0  # of GPUs: kernels need bfloat16 and asynchronous copies


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
        try:
            self._read()
        except (ModelError, AttributeError) as error:
            raise ModelError(f"the layers of {name_of(model)} can't be fused: {error}; use backend='static'") from error

    @classmethod
    def accepts(cls, model: object) -> bool:
        if not isinstance(model, PreTrainedModel) or not super().accepts(model) or not has_kernels(model.device):
            return False
        return torch.cuda.get_device_capability(model.device) >= _LEAST_CAPABILITY

    def _read(self) -> None:
        """Make what replaces the model's parts: a module, the name of its child, and the child's replacement."""
        found, head = HiddenStates(self.model), self.model.get_output_embeddings()
        if not found.is_able:
            raise ModelError("it has no single list of layers")
        kernels, attention, argument = self._kernels(), str(self.compiler.attention), cache_argument(self.model)
        readers = [LayerReader(layer, number) for number, layer in enumerate(found.layers)]
        layers = [FusedLayer(parts, kernels, attention, argument) for parts in readers]
        self._fused: list[tuple[Any, str, torch.nn.Module]] = [
            (found.holder, _name_of(found.holder, found.layers), torch.nn.ModuleList(layers)),
            (found.holder, "norm", FusedNorm(NormReader(found.holder.norm), kernels)),
            (self.model, _name_of(self.model, head), FusedHead(head, kernels)),
        ]
        with self.in_model():
            self._hidden_states = HiddenStates(self.model)

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

    def _call(self, inputs: StaticInputs, hidden: tuple[int, ...] = ()) -> Outputs:
        if self._is_hooked or not self._placement.has_row_numbers:  # hooks, or a layout of another compiler
            return super()._call(inputs, hidden)
        with self.in_model():
            return super()._call(inputs, hidden)


def _name_of(holder: torch.nn.Module, child: torch.nn.Module | None) -> str:
    for name, each in holder.named_children():
        if each is child:
            return name
    raise ModelError(f"its {type(holder).__name__} doesn't hold a {type(child).__name__} itself")
