"""A P-EAGLE head in training ("P-EAGLE", arXiv 2602.01469): all steps of a text in one pass of its layers.

After the pair at position i come the mask pairs of the steps that follow, at positions i + 1, i + 2, …, which see the
pairs of the text up to i and each other, as in a draft. Further steps are trained from fewer positions (conditional
drop-token sampling), nested, as a step's mask pair sees those of the steps before it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specdec.heads.config import PEagleConfig
from specdec.heads.drafting import first_pass
from specdec.heads.eagle3_folder import read_p_eagle_head, write_p_eagle_head
from specdec.heads.files import TargetWeights
from specdec.heads.p_eagle import FurtherLayer, PEagleHead, PEagleRunner
from specdec.heads.pair_head import LayerInputs
from specdec.training.base import DEPTH
from specdec.training.eagle3_training import Eagle3Training, eagle3_config
from specdec.training.least_squares_start import Samples
from specdec.training.losses import Batch, distribution
from specdec.training.packing import PackedRows
from specdec.training.unrolled import chain_attention

_RANDOM = 0.8
_MOST_LAYERS, _FEWEST_LAYERS, _TARGET_LAYERS_PER_LAYER = 4, 2, 7  # four are published


class PEagleTraining(Eagle3Training):
    """A P-EAGLE head; its ``sizes`` are fields of ``PEagleConfig``.

    Attributes:
        retained: share of a step's positions that are retained for the next one.
        least_retained: least share of all positions that is retained.
    """

    retained: ClassVar[float] = 0.7
    least_retained: ClassVar[float] = 0.2

    strategy: ClassVar[str] = "p_eagle"
    label: ClassVar[str] = "a P-EAGLE head"
    architecture: ClassVar[str] = "PEagleSpeculator"
    rates: ClassVar[Mapping[str, float]] = {**Eagle3Training.rates, "mask": 1e-2}
    schedule: ClassVar[Mapping[str, Any]] = {"step_weights": (1.0,) * DEPTH, "early_steps": DEPTH}

    head: PEagleHead

    @classmethod
    def _empty(cls, model: Any, vocabulary: torch.Tensor, device: torch.device | str, **sizes: Any) -> PEagleHead:
        config = _config_for(model, vocabulary, **sizes)
        return PEagleHead(config, model.get_input_embeddings().weight, device, torch.float32)

    @torch.no_grad()
    def start(self, samples: Samples, generator: torch.Generator) -> float:
        explained = super().start(samples, generator)
        self.head.mask_hidden.copy_((samples.read.float() * self.scales).mean(0))
        for layer in self.head.layers.values():
            assert isinstance(layer, FurtherLayer), "all layers but the first are alike"
            own, mlp = layer.self_attn, layer.mlp
            for projection in (own.q_proj, own.k_proj, own.v_proj, mlp.gate_proj, mlp.up_proj):
                projection.weight.normal_(std=_RANDOM * projection.in_features**-0.5, generator=generator)
            own.o_proj.weight.zero_()
            mlp.down_proj.weight.zero_()
        return explained

    def outs(self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        every = torch.arange(rows.tokens.shape[1], device=self.device).expand_as(rows.tokens)
        return self.sampled_outs(read, rows, visible, [every] * (num_steps - 1))

    def sampled_outs(
        self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, places: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the outputs of each step; after the first, those from some places, (rows, m).

        Args:
            places: of each step after the first, each a beginning of that of the step before.
        """
        head = self.head
        counts = [rows.tokens.shape[1], *(each.shape[1] for each in places)]
        num_masks = sum(counts[1:])
        masks = rows.tokens.new_full((len(rows), num_masks), head.config.mask_token_id)
        states = (read * self.scales).to(head.fc.weight.dtype)
        positions = [rows.positions.gather(1, each) + step for step, each in enumerate(places, 1)]
        seen = [visible, *(visible.gather(1, each[..., None].expand(-1, -1, counts[0])) for each in places)]

        def attend(_: int, inputs: LayerInputs) -> torch.Tensor:
            query, *others = (torch.split(each, counts, 2) for each in inputs[1:])
            fed = [LayerInputs(inputs.residual, *each) for each in zip(query, *others, strict=True)]
            parts = []
            for step, count in enumerate(counts):
                later = [_first(each, count) for each in fed[1 : step + 1]]
                parts.append(chain_attention(query[step], [fed[0], *later], seen[step]))
            return torch.cat(parts, 2)

        out = head(
            torch.cat((rows.tokens.roll(-1, 1), masks), 1),
            torch.cat((states, head.mask_hidden.expand(len(rows), num_masks, -1).to(states.dtype)), 1),
            torch.cat((rows.positions, *positions), 1),
            attend,
        )
        return list(torch.split(out, counts, 1))

    def loss(self, batch: Batch, weights: Sequence[float], generator: torch.Generator) -> torch.Tensor:
        """Return the weighted mean of the steps' mean cross-entropies, each from the positions that are kept for it."""
        rows, (num_rows, length) = batch.rows, batch.rows.tokens.shape
        is_label = torch.zeros(num_rows * length, dtype=torch.bool, device=self.device)
        is_label[batch.indices] = True
        is_label = is_label.view(num_rows, length)
        places = self._retained(is_label, len(weights), generator)
        outs = self.sampled_outs(self.read(batch.states), rows, batch.visible, places[1:])
        total = torch.zeros((), device=self.device)
        for step, (out, place, weight) in enumerate(zip(outs, places, weights, strict=True)):
            wanted = place + 2 + step
            is_counted = (is_label.gather(1, wanted.clamp_max(length - 1)) & (wanted < length)).float()
            before = (wanted - 1).clamp_max(length - 1)[..., None].expand(-1, -1, batch.states.final.shape[-1])
            teacher = distribution(batch.states.final.gather(1, before), self.output_rows)
            found = self.logits(out, step).float()
            losses = cross_entropy(found.flatten(0, 1), teacher.flatten(0, 1), reduction="none").view_as(place)
            total = total + weight * (losses * is_counted).sum() / is_counted.sum().clamp_min(1.0)
        return total / len(weights)

    def _retained(self, is_label: torch.Tensor, num_steps: int, generator: torch.Generator) -> list[torch.Tensor]:
        """Return the positions of each step, (rows, m): all at first, then drawn ones, of answers before others."""
        num_rows, length = is_label.shape
        drawn = torch.rand(num_rows, length, generator=generator, device=self.device)
        order = (drawn + is_label.roll(-2, 1)).argsort(1, descending=True)
        shares = (max(self.retained**step, self.least_retained) for step in range(1, num_steps))
        every = torch.arange(length, device=self.device).expand(num_rows, length)
        return [every, *(order[:, : max(1, round(length * share))] for share in shares)]

    def drafter(self, num_tokens: int) -> Callable[[int], np.ndarray]:
        runners = [PEagleRunner(self.head, 1, depth) for depth in range(1, DEPTH + 1)]
        cache, states, tokens = self._context(num_tokens, runners[-1])

        def draft(length: int) -> np.ndarray:
            cache.truncate(num_tokens)
            found, *_ = first_pass(runners[length - 1], [cache], [states], [tokens], None, length - 1)
            return found.tokens[0, :, 0]

        return draft

    def _fold(self) -> None:
        with torch.no_grad():
            self.head.mask_hidden.div_(self.scales)
        super()._fold()

    def _write(self, folder: Path) -> None:
        write_p_eagle_head(self.head, folder, self.num_layers, str(getattr(self.model, "name_or_path", "")))

    def _read(self, folder: Path, weights: TargetWeights) -> PEagleHead:
        return read_p_eagle_head(folder, weights, torch.float32)


def _first(inputs: LayerInputs, count: int) -> LayerInputs:
    """Return the first pairs of attention's inputs."""
    return LayerInputs(inputs.residual, *(each[:, :, :count] for each in inputs[1:]))


def _config_for(model: Any, vocabulary: torch.Tensor, **overrides: Any) -> PEagleConfig:
    """Return the configuration of a P-EAGLE head for a target.

    The mask token is one that the head doesn't draft, if there is one: its embedding stands for no known token.

    Args:
        model: the target.
        vocabulary: (draft vocab,) the target's id of each draft id, in ascending order.
        overrides: fields of ``PEagleConfig`` to set otherwise.
    """
    derived = eagle3_config(model, len(vocabulary)).model_dump()
    is_drafted = torch.zeros(derived["vocab_size"], dtype=torch.bool)
    is_drafted[vocabulary.cpu()] = True
    derived["mask_token_id"] = int(is_drafted.int().argmin())
    layers = model.config.get_text_config().num_hidden_layers
    derived["num_layers"] = min(_MOST_LAYERS, max(_FEWEST_LAYERS, layers // _TARGET_LAYERS_PER_LAYER))
    return PEagleConfig(**derived | overrides)
