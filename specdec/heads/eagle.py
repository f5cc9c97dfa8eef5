"""The draft head of EAGLE and EAGLE-2 (Li et al. 2024, arXiv 2401.15077, section 3; arXiv 2406.16858).

The feature f_i of a pair is the target's last hidden state at position i, after the final norm:

    u = fc(cat(emb(x_{i+1}), f_i))
    a = u + o_proj(Attention(u))
    f = a + MLP(post_attention_layernorm(a))
    logits(x_{i+2}) = lm_head(f)

There is no norm before attention and none before the output matrix, which is the target's. The layer learns to predict
f_{i+1}, so the pair of a drafted token takes f of the pair before it.

A folder has the official layout, vLLM's or ``speculators``', as safetensors or as a ``.bin`` file of plain tensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec.errors import ModelError
from specdec.heads.config import EagleConfig
from specdec.heads.files import (
    FILES,
    TargetWeights,
    check_target,
    head_embeddings,
    layer_settings,
    load_tensors,
    read_config,
    read_tensors,
)
from specdec.heads.kinds import check_kind
from specdec.heads.layers import LayerInputs, PairLayer
from specdec.heads.pair_head import PairHead
from specdec.heads.settings import check_layers, check_settings, check_tensors, layer_part, understood, window_of


class EagleHead(PairHead):
    """The head of EAGLE and EAGLE-2.

    Args:
        config: sizes and biases.
        embeddings: as for ``PairHead``.
        device: where the parameters are created.
        dtype: of the parameters.
    """

    config: EagleConfig

    def __init__(
        self,
        config: EagleConfig,
        embeddings: torch.Tensor,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config, embeddings)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, config.bias, **where)
        self.midlayer = PairLayer(config, config.hidden_size, **where)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False, **where)

    @property
    def target_ids(self) -> torch.Tensor:
        return torch.arange(self.config.draft_vocab_size, device=self.fc.weight.device)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states, (…, hidden), which are the features."""
        return states

    def enter_embedded(
        self, embedded: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> LayerInputs:
        joined = self._products.fc(torch.cat((embedded, features), -1))
        if self.fc.bias is not None:
            joined = joined + self.fc.bias.to(joined.dtype)
        return self._inputs(joined, joined, cos, sin)

    def next_features(self, out: torch.Tensor) -> torch.Tensor:
        return out

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        return self.logits_map(self._products.lm_head(out))


REMEDY = "give the folder of an EAGLE head that was trained for this model"
_PREFIXES = {"layers.0.": "midlayer.", "transformer.": "midlayer.", "fusion_fc.": "fc."}  # the latter ``speculators``'


def read_eagle_head(folder: Path, target: TargetWeights, dtype: torch.dtype) -> EagleHead:
    """Read a head from its folder, for a target, on the target's device.

    The output matrix is the target's, unless the folder has one of its own.

    Raises:
        ModelError: the folder holds no head of EAGLE or EAGLE-2, or one of another target; with what was found and
            needed.
    """
    settings = read_config(folder, REMEDY)
    files = read_tensors(folder, FILES, REMEDY)
    tensors = {_official_name(name): tensor for name, tensor in files.items()}
    with understood(folder, REMEDY):
        check_kind(folder, settings, REMEDY, {"eagle"}, tensors)
        check_settings(folder, settings, REMEDY, has_norms=False)
        check_tensors(folder, settings, tensors, REMEDY)
        check_layers(folder, settings, (target.num_layers,), REMEDY)
        config = _config_of(folder, layer_part(settings), tensors)
        check_target(folder, config.vocab_size, config.hidden_size, target, REMEDY)
        own, sizes = tensors.pop("embed_tokens.weight", None), (config.vocab_size, config.hidden_size)
        embeddings = head_embeddings(folder, own, sizes, target, REMEDY)
        head = EagleHead(config, embeddings, embeddings.device, dtype)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"], head.logits_map = target.output(), target.logits_map()
    load_tensors(folder, head, tensors, REMEDY)
    return head.eval().requires_grad_(False)


def _official_name(name: str) -> str:
    name = name.removeprefix("model.")
    return next((new + name.removeprefix(old) for old, new in _PREFIXES.items() if name.startswith(old)), name)


def _config_of(folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> EagleConfig:
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(f"the head in {folder} has {layers} layers, and EAGLE heads have one: {REMEDY}")
    hidden, joined = tensors["fc.weight"].shape
    if joined != 2 * hidden:
        raise ValueError(f"fc.weight of shape {(hidden, joined)}")
    return EagleConfig(
        hidden_size=hidden,
        **layer_settings(settings, tensors),
        sliding_window=window_of(settings),
        draft_vocab_size=settings["vocab_size"],
        bias="fc.bias" in tensors,
    )
