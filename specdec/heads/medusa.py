"""Medusa's draft heads (Cai et al. 2024, arXiv 2401.10774, section 2.1).

All heads read the target's last hidden state h at one position i, after the final norm. Head k, from 0, predicts the
token at position i + 2 + k; that at i + 1 is the target's own. A head is a stack of residual blocks and an output
matrix:

    z = h + SiLU(W h + b)
    logits(x_{i+2+k}) = U z

The output matrix is the head's own, or one that all heads share. No head sees the tokens that another one predicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import silu

from specdec.heads.base import Noise
from specdec.heads.logits_map import LogitsMap
from specdec.heads.torch_runner import most_probable, product_of


class ResBlock(NamedTuple):
    """A residual block: ``weight`` is (hidden, hidden), ``bias`` (hidden,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """The weights of Medusa's heads.

    Attributes:
        blocks: the residual blocks of each head, the same number for all heads.
        outputs: (draft vocab, hidden), one for each head, or a single one that all heads share.
        target_ids: (draft vocab,) the target's id of each draft id.
        logits_map: the map from products with the output matrices to logits.
    """

    blocks: Sequence[Sequence[ResBlock]]
    outputs: Sequence[torch.Tensor]
    target_ids: torch.Tensor
    logits_map: LogitsMap = field(default_factory=LogitsMap)

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return len(self.blocks)


class Predictions(NamedTuple):
    """The most probable tokens by each head, for each request.

    Attributes:
        tokens: (requests, heads, k) target ids, the most probable first.
        log_probs: (requests, heads, k), in float32.
    """

    tokens: np.ndarray
    log_probs: np.ndarray


class MedusaRunner:
    """Runs the heads by torch, on the device of their weights; on a CPU, it packs a second copy of the matrices.

    Args:
        weights: of the heads.
        num_tokens: k, the number of tokens that each head predicts; at most the draft vocabulary.
    """

    def __init__(self, weights: MedusaWeights, num_tokens: int) -> None:
        self.weights, self.num_tokens = weights, min(num_tokens, len(weights.target_ids))
        like = weights.outputs[0]
        self.dtype, self.device = like.dtype, like.device
        prepare = product_of(like)
        self._blocks = [[(prepare(block.weight), block.bias) for block in blocks] for blocks in weights.blocks]
        self._outputs = [prepare(output) for output in weights.outputs]
        self._target_ids = weights.target_ids.cpu().numpy()

    @torch.inference_mode()
    def run(self, states: torch.Tensor, noise: Noise | None = None) -> Predictions:
        """Return each head's predictions.

        Args:
            states: (requests, hidden), the target's at the last accepted token, whose continuation is known.
            noise: added to the logits, (requests, heads, draft vocab); None for the heads' own probabilities.
        """
        rows = list[torch.Tensor]()
        for blocks in self._blocks:
            z = states
            for product, bias in blocks:
                inner = product(z)
                z = z + silu(inner if bias is None else inner + bias)
            rows.append(z)
        if len(self._outputs) == 1:
            logits = self._outputs[0](torch.stack(rows, 1))
        else:
            logits = torch.stack([output(z) for output, z in zip(self._outputs, rows, strict=True)], 1)
        draft_ids, log_probs = most_probable(self.weights.logits_map(logits), self.num_tokens, noise)
        return Predictions(self._target_ids[draft_ids], log_probs)
