"""Updates of a whole model's weights by the losses of consistency training."""

import copy
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError
from specdec.models.architecture import name_of
from specdec.training.autocast import autocast
from specdec.training.consistency import Blocks, initial_guess, losses, trajectory
from specdec.training.optimizer import ScheduledAdamW
from specdec.training.packing import PackedRows
from specdec.training.settings import ConsistencySettings


class Tuner:
    """A copy of a model in float32, and its optimizer. The model itself is left as it is.

    Randomness depends on the seed and the number of the update alone, so a resumed run repeats that of an uninterrupted
    one.

    Args:
        model: a causal language model; a half dtype is that of the copy's passes.
        ends: tokens that end a text.
        settings: of the training.

    Raises:
        ModelError: for a model with weights that have no gradient, such as quantised ones.
    """

    def __init__(self, model: Any, ends: Sequence[int], settings: ConsistencySettings) -> None:
        if not all(parameter.is_floating_point() for parameter in model.parameters()):
            raise ModelError(f"{name_of(model)} has quantised weights, which can't be trained: load it without these")
        self.settings, self._dtype, self._device = settings, model.dtype, model.device
        self._ends = torch.tensor(ends, device=model.device)
        self.model = copy.deepcopy(model).float().requires_grad_(requires_grad=True)
        self._parameters = dict(self.model.named_parameters())  # tied ones once
        self._optimizer = ScheduledAdamW([([*self._parameters.values()], settings.learning_rate)], settings)

    def update(self, rows: PackedRows, number: int, done: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Make one update of the weights; return L_GC and L_AR.

        Args:
            rows: packed rows of greedy answers, on any device.
            number: of the update.
            done: share of the training before it.
        """
        settings, draw = self.settings, np.random.default_rng((self.settings.seed, number))
        blocks = Blocks.of(rows.to(self._device), settings.block_size)
        with autocast(self._device, self._dtype):
            states = trajectory(self.model, blocks, initial_guess(blocks, self._ends, draw))
            state = next(islice(states, int(draw.integers(settings.block_size)), None))
            consistency, autoregressive = losses(self.model, blocks, state)
        self._optimizer.step(consistency + settings.ar_weight * autoregressive, number, done)
        return consistency.detach(), autoregressive.detach()

    @torch.no_grad()
    def copy_to(self, model: Any) -> None:
        """Round the weights to those of a copy of the original model."""
        for name, parameter in model.named_parameters():
            parameter.copy_(self._parameters[name])

    def state(self) -> dict[str, torch.Tensor]:
        """Return what ``restore`` takes."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self._parameters.items()}
        return tensors | self._optimizer.state()

    @torch.no_grad()
    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Go on from a ``state`` of the same model, on any device."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"model.{name}"])
        self._optimizer.restore(tensors)
