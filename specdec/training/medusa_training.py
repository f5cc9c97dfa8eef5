"""Medusa's heads in training (Cai et al. 2024, arXiv 2401.10774, section 2.2.1): all read the last hidden state alone.

Each head begins as the best linear map from that state to the final state before its token: its block adds nothing,
and its output matrix is the target's after the map.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn.functional import linear, silu

from specdec.heads.files import TargetWeights
from specdec.heads.medusa import MedusaRunner, MedusaWeights, ResBlock
from specdec.heads.medusa_folder import read_medusa_heads, write_medusa_heads
from specdec.training.base import DEPTH, HeadTraining
from specdec.training.least_squares_start import Samples, ridge, state_scales
from specdec.training.packing import PackedRows
from specdec.training.target import States


class MedusaHeads(nn.Module):
    """The parameters of Medusa's heads.

    Args:
        weights: of the heads, which aren't copied.
    """

    token_map: torch.Tensor

    def __init__(self, weights: MedusaWeights) -> None:
        super().__init__()
        self.num_blocks = len(weights.blocks[0])
        every = [block for blocks in weights.blocks for block in blocks]
        self.block_weights = nn.ParameterList([block.weight for block in every])
        self.block_biases = nn.ParameterList([_bias(block) for block in every])
        self.output_weights = nn.ParameterList(weights.outputs)
        self.register_buffer("token_map", weights.target_ids)

    def blocks(self) -> list[list[ResBlock]]:
        """Return the residual blocks of each head."""
        every = [*map(ResBlock, self.block_weights, self.block_biases)]
        return [every[start : start + self.num_blocks] for start in range(0, len(every), self.num_blocks)]

    def weights(self) -> MedusaWeights:
        """Return the weights, which aren't copied."""
        return MedusaWeights(self.blocks(), list(self.output_weights), self.token_map)


def _bias(block: ResBlock) -> torch.Tensor:
    return torch.zeros_like(block.weight[0]) if block.bias is None else block.bias


class MedusaSizes(BaseModel):
    """The sizes of Medusa's heads that the target doesn't decide.

    Attributes:
        num_blocks: residual blocks of each head.
        shares_output: all heads have one output matrix, which begins as the target's, instead of one each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_blocks: int = Field(default=1, ge=1)
    shares_output: bool = False


class MedusaTraining(HeadTraining):
    """Medusa's heads; their ``sizes`` are fields of ``MedusaSizes``."""

    strategy: ClassVar[str] = "medusa"
    label: ClassVar[str] = "Medusa heads"
    architecture: ClassVar[str] = "MedusaModel"
    rates: ClassVar[Mapping[str, float]] = {"block": 5e-4, "output": 2e-4}
    schedule: ClassVar[Mapping[str, Any]] = {
        "step_weights": tuple(0.8**step for step in range(DEPTH)),
        "early_steps": DEPTH,
    }
    start_steps: ClassVar[int] = DEPTH

    head: MedusaHeads

    @classmethod
    def untrained(
        cls, model: Any, vocabulary: torch.Tensor, *, device: torch.device | str | None = None, **sizes: Any
    ) -> Self:
        chosen, hidden = MedusaSizes(**sizes), model.config.get_text_config().hidden_size
        where: dict[str, Any] = {"device": model.device if device is None else device, "dtype": torch.float32}

        def block() -> ResBlock:
            return ResBlock(torch.zeros(hidden, hidden, **where), torch.zeros(hidden, **where))

        blocks = [[block() for _ in range(chosen.num_blocks)] for _ in range(DEPTH)]
        num_outputs = 1 if chosen.shares_output else DEPTH
        outputs = [torch.zeros(len(vocabulary), hidden, **where) for _ in range(num_outputs)]
        return cls(model, MedusaHeads(MedusaWeights(blocks, outputs, vocabulary.to(where["device"]))))

    @property
    def states_size(self) -> int:
        return int(self.head.output_weights[0].shape[1])

    @property
    def target_ids(self) -> torch.Tensor:
        return self.head.token_map

    @property
    def layer_ids(self) -> Sequence[int]:
        return ()

    def read(self, states: States) -> torch.Tensor:
        return states.final

    @torch.no_grad()
    def start(self, samples: Samples, generator: torch.Generator) -> float:
        self.scales = state_scales(samples.read)
        read, output = samples.read.float() * self.scales, self.output_rows.float()
        if len(self.head.output_weights) == 1:
            self.head.output_weights[0].copy_(output)
            return 0.0
        rest, energy = 0.0, 0.0
        for step, weight in enumerate(self.head.output_weights):
            wanted = samples.final[:, step].float()
            to_final = ridge(read, wanted)
            weight.copy_(output @ (self.scales[:, None] * to_final).T)
            rest += float((wanted - read @ to_final).square().sum())
            energy += float(wanted.square().sum())
        return 1 - rest / energy

    def outs(self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        found = list[torch.Tensor]()
        for blocks in self.head.blocks()[:num_steps]:
            z, scales = read.to(blocks[0].weight.dtype), self.scales
            for weight, bias in blocks:
                z = z + silu(linear(z * scales, weight, bias))
                scales = torch.ones_like(scales)
            found.append(z)
        return found

    def logits(self, out: torch.Tensor, step: int) -> torch.Tensor:
        outputs = self.head.output_weights
        return linear(out, outputs[step % len(outputs)])

    def drafter(self, num_tokens: int) -> Callable[[int], np.ndarray]:
        runner = MedusaRunner(self.head.weights(), 1)
        state = torch.zeros(1, self.states_size, dtype=runner.dtype, device=runner.device)
        return lambda length: runner.run(state).tokens[0, :length, 0]

    def _fold(self) -> None:
        with torch.no_grad():
            for blocks in self.head.blocks():
                blocks[0].weight.mul_(self.scales)

    def _write(self, folder: Path) -> None:
        write_medusa_heads(self.head.weights(), folder, self.vocab_size)

    def _read(self, folder: Path, weights: TargetWeights) -> MedusaHeads:
        return MedusaHeads(read_medusa_heads(folder, weights, torch.float32))
