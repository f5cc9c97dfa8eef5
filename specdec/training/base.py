"""The contract of a kind of head in training.

A head drafts several tokens from each position i of a text, whose token x_{i+1} is known: step s predicts x_{i+2+s}.
Training and evaluation compute all steps from all positions at once.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specdec.heads.files import TargetWeights
from specdec.training.losses import Batch, distribution
from specdec.training.packing import PackedRows

if TYPE_CHECKING:
    from specdec.training.least_squares_start import Samples
    from specdec.training.target import States

DEPTH = 5  # tokens drafted in evaluations


class HeadTraining(ABC):
    """A head of one kind in training.

    Args:
        model: the target.
        head: in float32; weights that aren't trained require no gradient.

    Attributes:
        strategy: the name of the strategy that drafts with the head.
        label: the kind in words, with its article.
        architecture: the kind's name in the configurations of its folders.
        rates: peak learning rates for batches of about a thousand tokens, by a part of the parameters' names; the first
            that is in a name holds.
        schedule: fields of ``TrainingSettings`` that differ from their defaults.
        start_steps: steps whose final states the start needs.
        scales: (states size,) factors on the target's states that the head reads.
    """

    strategy: ClassVar[str]
    label: ClassVar[str]
    architecture: ClassVar[str]
    rates: ClassVar[Mapping[str, float]]
    schedule: ClassVar[Mapping[str, Any]] = {}
    start_steps: ClassVar[int] = 1

    def __init__(self, model: Any, head: torch.nn.Module) -> None:
        self.model, self.head = model, head
        self.scales = torch.ones(self.states_size, device=self.target_ids.device)

    @classmethod
    @abstractmethod
    def untrained(
        cls, model: Any, vocabulary: torch.Tensor, *, device: torch.device | str | None = None, **sizes: Any
    ) -> Self:
        """Return a head whose weights are set by ``start``.

        Args:
            model: the target.
            vocabulary: (draft vocab,) the target's id of each draft id, in ascending order.
            device: where the weights are created; None for the target's.
            sizes: of the head, where they differ from those derived from the target.
        """

    @property
    @abstractmethod
    def states_size(self) -> int:
        """The width of the states that the head reads."""

    @property
    @abstractmethod
    def target_ids(self) -> torch.Tensor:
        """(draft vocab,) the target's id of each draft id."""

    @property
    @abstractmethod
    def layer_ids(self) -> Sequence[int]:
        """The target's layers whose states are read, besides the final ones."""

    @property
    def num_layers(self) -> int:
        """The number of the target's layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return len(self.model.get_input_embeddings().weight)

    @property
    def device(self) -> torch.device:
        """The device of the head."""
        return self.scales.device

    @cached_property
    def output_rows(self) -> torch.Tensor:
        """(draft vocab, hidden), the target's output matrix at the draft vocabulary."""
        rows: torch.Tensor = self.model.get_output_embeddings().weight.detach()[self.target_ids]
        return rows

    @abstractmethod
    def read(self, states: "States") -> torch.Tensor:
        """Return the states that the head reads, (rows, length, states size)."""

    @abstractmethod
    def start(self, samples: "Samples", generator: torch.Generator) -> float:
        """Set the head's weights before training, from samples of the text.

        Returns:
            The share of the next final states' energy that the start explains.
        """

    @abstractmethod
    def outs(self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        """Return what the logits of each step are of, (rows, length, hidden); step s at i predicts x_{i+2+s}.

        Outputs whose token x_{i+1+s} is not in the row's document are meaningless.

        Args:
            read: (rows, length, states size), from ``read``.
            rows: the text.
            visible: (rows, length, length), True where a position sees another.
            num_steps: number of steps.
        """

    @abstractmethod
    def logits(self, out: torch.Tensor, step: int) -> torch.Tensor:
        """Return a step's logits over the draft vocabulary, (…, draft vocab), from (…, hidden) of its output."""

    def loss(self, batch: Batch, weights: Sequence[float], generator: torch.Generator) -> torch.Tensor:
        """Return the weighted sum of the steps' mean cross-entropies against the target's distribution.

        Args:
            batch: the rows and the target's states.
            weights: one per step.
            generator: the source of randomness, on the head's device.
        """
        outs = self.outs(self.read(batch.states), batch.rows, batch.visible, len(weights))
        teacher = distribution(batch.states.final.flatten(0, 1)[batch.indices - 1], self.output_rows)
        total = torch.zeros((), device=self.device)
        for step, (out, weight) in enumerate(zip(outs, weights, strict=True)):
            found = self.logits(out.flatten(0, 1)[batch.indices - 2 - step], step)
            total = total + weight * cross_entropy(found.float(), teacher)
        return total

    @abstractmethod
    def drafter(self, num_tokens: int) -> Callable[[int], np.ndarray]:
        """Return a function from a length to a chain of that many target ids, drafted as the kind's strategy drafts.

        For timing: the head isn't trained afterwards. It runs in the dtype of its parameters.

        Args:
            num_tokens: of the text that the drafts continue; the target's states at these are taken as zero.
        """

    def fold(self) -> None:
        """Fold the factors on the target's states into the weights; the head then reads states as they are."""
        self._fold()
        self.scales = torch.ones_like(self.scales)

    @abstractmethod
    def _fold(self) -> None:
        """Multiply the weights that read states by ``scales``."""

    def write(self, folder: Path) -> None:
        """Write the head, in bfloat16, as the folder that its strategy reads."""
        other = type(self)(self.model, copy.deepcopy(self.head))
        other.scales = self.scales
        other.fold()
        other._write(folder)

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write a head that reads states as they are."""

    def with_head_of(self, folder: Path) -> Self:
        """Return the training of a head that was written before, which reads states as they are.

        Raises:
            ModelError: the folder has no head of this kind for this target.
        """
        output = self.model.get_output_embeddings().weight.detach()
        weights = TargetWeights(self.model.get_input_embeddings().weight.detach(), lambda: output, self.num_layers)
        return type(self)(self.model, self._read(folder, weights))

    @abstractmethod
    def _read(self, folder: Path, weights: TargetWeights) -> torch.nn.Module:
        """Return the head in a folder, in float32."""
