"""The draft head of EAGLE and EAGLE-2 (Li et al. 2024, arXiv 2401.15077, section 3; arXiv 2406.16858).

The feature f_i of a pair is the target's last hidden state at position i, after the final norm:

    u = fc(cat(emb(x_{i+1}), f_i))
    a = u + o_proj(Attention(u))
    f = a + MLP(post_attention_layernorm(a))
    logits(x_{i+2}) = lm_head(f)

There is no norm before attention and none before the output matrix, which is the target's. The layer learns to predict
f_{i+1}, so the pair of a drafted token takes f of the pair before it.
"""

from typing import Any

import torch
from torch import nn

from specdec.heads.config import EagleConfig
from specdec.heads.pair_head import LayerInputs, PairHead, PairLayer


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
        self.midlayer = PairLayer(config, config.hidden_size, config.qkv_bias, **where)
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
        return self._products.lm_head(out)
