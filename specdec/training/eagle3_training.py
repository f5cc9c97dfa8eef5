"""An EAGLE-3 head in training: unrolled steps on true tokens, from a least-squares start."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from specdec.heads.base import HeadRunner
from specdec.heads.config import Eagle3Config
from specdec.heads.drafting import TreeGrowth
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_folder import read_head, write_head
from specdec.heads.files import TargetWeights
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.torch_runner import TorchRunner
from specdec.training.base import HeadTraining
from specdec.training.least_squares_start import Samples, least_squares_start, state_scales
from specdec.training.packing import PackedRows
from specdec.training.target import States
from specdec.training.unrolled import unroll

_LEAST_LAYERS = 7  # of the target; below that, the layout's default names a layer twice
_NEW_PAIRS = 2  # per step: of the root, and of an accepted token


class Eagle3Training(HeadTraining):
    """An EAGLE-3 head; its ``sizes`` are fields of ``Eagle3Config``."""

    strategy: ClassVar[str] = "eagle3"
    label: ClassVar[str] = "an EAGLE-3 head"
    architecture: ClassVar[str] = "LlamaForCausalLMEagle3"
    rates: ClassVar[Mapping[str, float]] = {"norm": 1e-3, "mlp": 5e-4, "o_proj": 4e-4, "_proj": 2.5e-4, "fc": 1e-4}

    head: Eagle3Head

    @classmethod
    def untrained(
        cls, model: Any, vocabulary: torch.Tensor, *, device: torch.device | str | None = None, **sizes: Any
    ) -> Self:
        head = cls._empty(model, vocabulary, model.device if device is None else device, **sizes)
        head.set_vocabulary(vocabulary.to(head.d2t.device))
        head.lm_head.weight.requires_grad_(False)
        return cls(model, head)

    @classmethod
    def _empty(cls, model: Any, vocabulary: torch.Tensor, device: torch.device | str, **sizes: Any) -> Eagle3Head:
        """Return a head of the right sizes."""
        config = eagle3_config(model, len(vocabulary), **sizes)
        return Eagle3Head(config, model.get_input_embeddings().weight, device, torch.float32)

    @property
    def states_size(self) -> int:
        return self.head.config.states_size

    @property
    def target_ids(self) -> torch.Tensor:
        return self.head.target_ids

    @property
    def layer_ids(self) -> Sequence[int]:
        return self.head.config.target_layers(self.num_layers)

    def read(self, states: States) -> torch.Tensor:
        return states.layers

    def start(self, samples: Samples, generator: torch.Generator) -> float:
        self.scales = state_scales(samples.read)
        norm = getattr(getattr(self.model.get_decoder(), "norm", None), "weight", None)
        weight = torch.ones(samples.final.shape[-1]) if norm is None else norm.detach()
        rows = self.output_rows.float()
        return least_squares_start(self.head, samples, self.scales, rows, weight.to(self.device), generator)

    def outs(self, read: torch.Tensor, rows: PackedRows, visible: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        states = (read * self.scales).to(self.head.fc.weight.dtype)
        return unroll(self.head, states, rows, visible, num_steps)

    def logits(self, out: torch.Tensor, step: int) -> torch.Tensor:
        return self.head.logits(out)

    def drafter(self, num_tokens: int) -> Callable[[int], np.ndarray]:
        runner = TorchRunner(self.head, 1)
        cache, states, following = self._context(num_tokens, runner)

        def draft(length: int) -> np.ndarray:
            cache.truncate(num_tokens)
            growth = TreeGrowth(runner, [cache], [states], [following], width=1)
            for _ in range(length - 1):
                growth.feed()
            tokens: np.ndarray = growth.best(length).tokens[0]
            return tokens

        return draft

    def _context(self, num_tokens: int, runner: HeadRunner) -> tuple[PairCache, torch.Tensor, list[int]]:
        """Return a cache of a text, and the states and tokens of the pairs that a step appends."""
        cache = PairCache(self.head, runner.num_slots)
        states = self.head.fc.weight.new_zeros(num_tokens, self.states_size)
        with torch.inference_mode():
            append(self.head, cache, states, torch.zeros(num_tokens, dtype=torch.long, device=states.device))
        return cache, states[:_NEW_PAIRS], [0] * _NEW_PAIRS

    def _fold(self) -> None:
        with torch.no_grad():
            self.head.fc.weight.mul_(self.scales)

    def _write(self, folder: Path) -> None:
        is_reduced = self.head.config.draft_vocab_size < self.head.config.vocab_size
        names = "bos_token_id", "eos_token_id", "pad_token_id"
        special_tokens = {name: getattr(self.model.config, name, None) for name in names}
        write_head(self.head, folder, self.num_layers, special_tokens, with_output=is_reduced)

    def _read(self, folder: Path, weights: TargetWeights) -> Eagle3Head:
        return read_head(folder, weights, torch.float32)


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
