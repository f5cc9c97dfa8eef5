"""A transformers model whose small passes run from recordings: what ``backend="hf"`` is."""

from functools import partial

from transformers import PreTrainedModel

from specdec.backends.hf import HFBackend
from specdec.backends.inputs import Inputs, Outputs
from specdec.backends.recorded.replay import Replay
from specdec.backends.supported_passes import SupportedPasses
from specdec.layout import Compiler
from specdec.models.gradients import without_gradients
from specdec.models.notes import lock_of


class RecordedBackend(HFBackend):
    """An ``HFBackend`` that leaves out the model's Python code where it has recorded a pass, with the same bits."""

    def __init__(self, model: PreTrainedModel, compiler: Compiler, passes: SupportedPasses | None = None) -> None:
        super().__init__(model, compiler, passes)
        self._replay = Replay(model)

    def close(self) -> None:
        super().close()
        self._replay = Replay(self.model)

    def refresh(self) -> None:
        super().refresh()
        with lock_of(self.model):
            self._replay.refresh()

    def _outputs(self, inputs: Inputs, length: int, layers: tuple[int, ...]) -> Outputs:
        forward = partial(super()._outputs, inputs, length, layers)
        self.is_warm = True
        if layers and not self._hidden_states.is_able:
            return forward()
        kind = self._config._attn_implementation, tuple(inputs.masks), layers
        with without_gradients(self._is_inference):
            outputs = self._replay.outputs(forward, kind, inputs, self._cache.layers, length)
        self.is_warm = self._replay.is_warm
        return outputs
