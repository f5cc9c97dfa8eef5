"""EAGLE-3's draft head (Li et al. 2025, arXiv 2503.01840): one decoder layer over pairs of a feature and a token.

Pair i consists of the target's hidden states F_i of some layers at position i and the embedding of the next token
x_{i+1}:

    g = fc(F_i)
    x = cat(input_layernorm(emb(x_{i+1})), hidden_norm(g))
    a = g + o_proj(Attention(x))
    f = a + MLP(post_attention_layernorm(a))
    logits(x_{i+2}) = lm_head(norm(f))

The pair of a drafted token takes f of the pair before it in place of g.
"""

from typing import Any

import torch
from torch import nn

from specdec.heads.config import Eagle3Config
from specdec.heads.layers import LayerInputs, PairLayer, RMSNorm
from specdec.heads.pair_head import PairHead


class _Layer(PairLayer):
    def __init__(self, config: Eagle3Config, **where: Any) -> None:
        super().__init__(config, 2 * config.hidden_size, **where)
        norm = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(*norm, **where)
        self.hidden_norm = RMSNorm(*norm, **where)


class Eagle3Head(PairHead):
    """An EAGLE-3 head; its parameters have the names of published folders.

    Args:
        config: sizes and variants.
        embeddings: as for ``PairHead``.
        device: where the parameters are created.
        dtype: of the parameters.
        owns_embeddings: the embeddings aren't the target's, so ``write_head`` writes them too. Always so for a head of
            another width than the target.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor
    config: Eagle3Config
    midlayer: _Layer

    def __init__(
        self,
        config: Eagle3Config,
        embeddings: torch.Tensor,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        owns_embeddings: bool = False,
    ) -> None:
        super().__init__(config, embeddings)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.owns_embeddings = owns_embeddings or config.hidden_size != config.target_hidden_size
        width = config.states_size
        if config.norm_before_fc:
            self.input_norm = RMSNorm(width, config.rms_norm_eps, **where)
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, config.rms_norm_eps, **where) for _ in range(config.num_states))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(width, config.hidden_size, bias=False, **where)
        self.midlayer = _Layer(config, **where)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **where)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False, **where)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64, device=device))
        kept = torch.arange(config.vocab_size, device=device) < config.draft_vocab_size
        self.register_buffer("t2d", kept)

    @property
    def target_ids(self) -> torch.Tensor:
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def set_vocabulary(self, target_ids: torch.Tensor) -> None:
        """Set the draft vocabulary to ``target_ids``, (draft vocab,), in ascending order."""
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=target_ids.device))
        self.t2d.zero_()
        self.t2d[target_ids.to(self.t2d.device)] = True

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features g, (…, hidden), of target states (…, num_states * target hidden), low layer first."""
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            parts = torch.split(states, self.config.target_hidden_size, -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self._products.fc(states)

    def enter_embedded(
        self, embedded: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> LayerInputs:
        layer, config = self.midlayer, self.config
        normed = layer.hidden_norm(features)
        x = torch.cat((layer.input_layernorm(embedded), normed), -1)
        residual = normed if config.norm_before_residual else features
        return self._inputs(x, residual, cos, sin)

    def next_features(self, out: torch.Tensor) -> torch.Tensor:
        after: torch.Tensor = self.norm(out) if self.config.norm_output else out
        return after

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        return self.logits_map(self._products.lm_head(self.norm(out)))
