"""An EAGLE-3 head in training: unrolled steps on true tokens, from a least-squares start.

The head drafts several tokens from each position i of a text, whose token x_{i+1} is known: step s predicts x_{i+2+s}.
Training and evaluation compute all steps from all positions at once.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch.nn.functional import cross_entropy

from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import read_head, write_head
from specdec.heads.files import TargetWeights
from specdec.heads.layers import LayerInputs
from specdec.heads.logits_map import LogitsMap, logits_map_of
from specdec.heads.training.least_squares_start import Samples, least_squares_start, state_scales
from specdec.heads.training.losses import TrainingBatch, distribution
from specdec.heads.training.packing import PackedRows

DEPTH = 5  # tokens drafted in evaluations
_LEAST_LAYERS = 7  # of the target; below that, the layout's default names a layer twice


class Eagle3Training:
    """An EAGLE-3 head in training.

    Args:
        model: the target.
        head: in float32; weights that aren't trained require no gradient.

    Attributes:
        rates: peak learning rates for batches of about a thousand tokens, by a part of the parameters' names; the first
            that is in a name holds.
        scales: (states size,) factors on the target's states that the head reads.
    """

    rates: ClassVar[Mapping[str, float]] = {"norm": 1e-3, "mlp": 5e-4, "o_proj": 4e-4, "_proj": 2.5e-4, "fc": 1e-4}

    def __init__(self, model: Any, head: Eagle3Head) -> None:
        self.model, self.head = model, head
        self.scales = torch.ones(head.config.states_size, device=head.target_ids.device)

    @classmethod
    def untrained(
        cls, model: Any, vocabulary: torch.Tensor, *, device: torch.device | str | None = None, **sizes: Any
    ) -> Self:
        """Return a head whose weights are set by ``start``.

        Args:
            model: the target.
            vocabulary: (draft vocab,) the target's id of each draft id, in ascending order.
            device: where the weights are created; None for the target's.
            sizes: fields of ``Eagle3Config`` that differ from those derived from the target.
        """
        config, embeddings = eagle3_config(model, len(vocabulary), **sizes), model.get_input_embeddings().weight
        head = Eagle3Head(config, embeddings, model.device if device is None else device, torch.float32)
        head.set_vocabulary(vocabulary.to(head.d2t.device))
        head.lm_head.weight.requires_grad_(False)
        training = cls(model, head)
        if config.draft_vocab_size == config.vocab_size:  # the folder has no output matrix then
            head.logits_map = training.logits_map
        return training

    @classmethod
    def from_folder(cls, model: Any, folder: Path) -> Self:
        """Return a head that was written before, which reads states as they are.

        Raises:
            ModelError: the folder has no EAGLE-3 head for this target.
        """
        output = model.get_output_embeddings().weight.detach()
        embeddings, logits_map = model.get_input_embeddings().weight.detach(), partial(logits_map_of, model)
        weights = TargetWeights(embeddings, lambda: output, _num_layers(model), logits_map)
        return cls(model, read_head(folder, weights, torch.float32))

    @property
    def layer_ids(self) -> Sequence[int]:
        """The target's layers whose states are read, besides the final ones."""
        return self.head.config.target_layers(_num_layers(self.model))

    @property
    def device(self) -> torch.device:
        """The device of the head."""
        return self.scales.device

    @cached_property
    def output_rows(self) -> torch.Tensor:
        """(draft vocab, hidden), the target's output matrix at the draft vocabulary."""
        rows: torch.Tensor = self.model.get_output_embeddings().weight.detach()[self.head.target_ids]
        return rows

    @cached_property
    def logits_map(self) -> LogitsMap:
        """The target's map from products with ``output_rows`` to its logits."""
        return logits_map_of(self.model).of_tokens(self.head.target_ids)

    def start(self, samples: Samples, generator: torch.Generator) -> float:
        """Set the head's weights before training, from samples of the text.

        Returns:
            The share of the next final states' energy that the start explains.
        """
        self.scales = state_scales(samples.read)
        norm = getattr(getattr(self.model.get_decoder(), "norm", None), "weight", None)
        weight = torch.ones(samples.final.shape[-1]) if norm is None else norm.detach()
        rows, logits_map = self.output_rows.float(), self.logits_map
        return least_squares_start(self.head, samples, self.scales, rows, logits_map, weight.to(self.device), generator)

    def outs(self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        """Return what the logits of each step are of, (rows, length, hidden); step s at i predicts x_{i+2+s}.

        Outputs whose token x_{i+1+s} is not in the row's document are meaningless.

        Args:
            read: (rows, length, states size), the target's states of the head's layers.
            rows: the text.
            visible: (rows, length, length), True where a position sees another.
            num_steps: number of steps.
        """
        states = (read * self.scales).to(self.head.fc.weight.dtype)
        return unroll(self.head, states, rows, visible, num_steps)

    def loss(self, batch: TrainingBatch, weights: Sequence[float]) -> torch.Tensor:
        """Return the weighted sum of the steps' mean cross-entropies against the target's distribution.

        Args:
            batch: the rows and the target's states.
            weights: one per step.
        """
        outs = self.outs(batch.states.layers, batch.rows, batch.visible, len(weights))
        final = batch.states.final.flatten(0, 1)[batch.indices - 1]
        teacher = distribution(final, self.output_rows, self.logits_map)
        total = torch.zeros((), device=self.device)
        for step, (out, weight) in enumerate(zip(outs, weights, strict=True)):
            found = self.head.logits(out.flatten(0, 1)[batch.indices - 2 - step])
            total = total + weight * cross_entropy(found.float(), teacher)
        return total

    @torch.no_grad()
    def fold(self) -> None:
        """Fold the factors on the target's states into the weights; the head then reads states as they are."""
        self.head.fc.weight.mul_(self.scales)
        self.scales = torch.ones_like(self.scales)

    def write(self, folder: Path) -> None:
        """Write the head, in bfloat16, as the folder that ``eagle3`` reads."""
        other = type(self)(self.model, copy.deepcopy(self.head))
        other.scales = self.scales
        other.fold()
        is_reduced = self.head.config.draft_vocab_size < self.head.config.vocab_size
        names = "bos_token_id", "eos_token_id", "pad_token_id"
        special_tokens = {name: getattr(self.model.config, name, None) for name in names}
        write_head(other.head, folder, _num_layers(self.model), special_tokens, with_output=is_reduced)


def _num_layers(model: Any) -> int:
    return int(model.config.get_text_config().num_hidden_layers)


def eagle3_config(model: Any, draft_vocab_size: int, **overrides: Any) -> Eagle3Config:
    """Return the configuration of a head for a target: one layer of the target's sizes.

    Args:
        model: the target.
        draft_vocab_size: size of the draft vocabulary, at most the target's.
        overrides: fields of ``Eagle3Config`` to set otherwise.
    """
    config, vocab_size = model.config.get_text_config(), model.get_input_embeddings().weight.shape[0]
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    derived: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": vocab_size,
        "draft_vocab_size": min(draft_vocab_size, vocab_size),
        "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": getattr(config, "max_position_embeddings", 2048),
        "layer_ids": None if layers >= _LEAST_LAYERS else (1, layers // 2, layers - 1),
    }
    return Eagle3Config(**derived | overrides)


def unroll(
    head: Eagle3Head, states: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int
) -> list[torch.Tensor]:
    """Return the layer's outputs of each step, (rows, length, hidden); step s at i predicts x_{i+2+s}.

    This is the training-time test of EAGLE-3 (section 3.2): step 0 feeds every position i with the target's states F_i
    and the token x_{i+1}. Step s continues each position by s drafted pairs, with the true tokens and the head's own
    features: it attends to what step 0 fed up to i, and to its own s pairs since, as a chain drafted at i does.

    Outputs whose token x_{i+1+s} is not in the row's document are meaningless.

    Args:
        head: the head.
        states: (rows, length, num_states * target hidden).
        rows: the text.
        visible: (rows, length, length), True where a position sees another.
        num_steps: number of steps.
    """
    features = head.fuse(states)
    outs: list[torch.Tensor] = []
    fed: list[LayerInputs] = []
    for step in range(num_steps):
        following = rows.tokens.roll(-1 - step, 1)
        inputs = head.enter(following, features, rows.positions + step)
        fed.append(inputs)
        out = head.leave(inputs.residual, _chain_attention(inputs.query, fed, visible))
        outs.append(out)
        features = head.next_features(out)
    return outs


def _chain_attention(query: torch.Tensor, fed: list[LayerInputs], visible: torch.Tensor) -> torch.Tensor:
    """Attend to the first step's visible pairs, and to the same position's pairs of all later steps.

    Args:
        query: (rows, heads, length, head_dim), of the last step.
        fed: attention's inputs of each step.
        visible: (rows, length, length), True where a position sees a pair of the first step.
    """
    first, later = fed[0], fed[1:]
    rows, num_heads, n, dim = query.shape
    grouped = query.reshape(rows, first.key.shape[1], -1, n, dim) * dim**-0.5
    scores = grouped @ first.key.unsqueeze(2).transpose(-1, -2)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    own = [(grouped * inputs.key.unsqueeze(2)).sum(-1, keepdim=True) for inputs in later]
    length = scores.shape[-1]
    weights = torch.cat((scores, *own), -1).softmax(-1, dtype=torch.float32).to(first.value.dtype)
    attended = weights[..., :length] @ first.value.unsqueeze(2)
    for index, inputs in enumerate(later):
        attended = attended + weights[..., length + index, None] * inputs.value.unsqueeze(2)
    return attended.reshape(rows, num_heads, n, dim)
