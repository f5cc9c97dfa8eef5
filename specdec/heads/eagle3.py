"""EAGLE-3's draft head (Li et al. 2025, arXiv 2503.01840): one decoder layer over pairs of a feature and a token.

Pair i consists of the target's hidden states F_i of some layers at position i and the embedding of the next token
x_{i+1}; it stands at position i and predicts x_{i+2}:

    g = fc(F_i)
    x = cat(input_layernorm(emb(x_{i+1})), hidden_norm(g))
    a = g + o_proj(Attention(x))
    f = a + MLP(post_attention_layernorm(a))
    logits(x_{i+2}) = lm_head(norm(f))

A drafted token has no target states: its pair takes f of the pair before it in place of g. The module computes what
surrounds attention; drafting and training bring the attention over their own keys and values.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import embedding, rms_norm, silu

from specdec.heads.config import Eagle3Config
from specdec.heads.rotary import Rotary, rotated


class LayerInputs(NamedTuple):
    """The inputs of attention and of the rest of the layer; heads lie before positions.

    Attributes:
        residual: (batch, n, hidden).
        query: (batch, heads, n, head_dim), rotated.
        key: (batch, key-value heads, n, head_dim), rotated.
        value: (batch, key-value heads, n, head_dim).
    """

    residual: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


Product = Callable[[torch.Tensor], torch.Tensor]


class Products(NamedTuple):
    """The products with a head's matrices; each takes rows (…, inputs) and returns (…, outputs).

    Attributes:
        qkv: returns queries, keys and values.
        gate_up: returns the products with the MLP's two first matrices.
    """

    fc: Product
    qkv: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    o: Product
    gate_up: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    down: Product
    lm_head: Product


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float, **where: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, **where))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class _Attention(nn.Module):
    def __init__(self, config: Eagle3Config, **where: Any) -> None:
        super().__init__()
        width, hidden = 2 * config.hidden_size, config.hidden_size
        queries = config.num_attention_heads * config.head_dim
        pairs = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False, **where)
        self.k_proj = nn.Linear(width, pairs, bias=False, **where)
        self.v_proj = nn.Linear(width, pairs, bias=False, **where)
        self.o_proj = nn.Linear(queries, hidden, bias=False, **where)


class _MLP(nn.Module):
    def __init__(self, config: Eagle3Config, **where: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False, **where)
        self.up_proj = nn.Linear(hidden, inner, bias=False, **where)
        self.down_proj = nn.Linear(inner, hidden, bias=False, **where)


class _Layer(nn.Module):
    def __init__(self, config: Eagle3Config, **where: Any) -> None:
        super().__init__()
        norm = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(*norm, **where)
        self.hidden_norm = RMSNorm(*norm, **where)
        self.self_attn = _Attention(config, **where)
        self.post_attention_layernorm = RMSNorm(*norm, **where)
        self.mlp = _MLP(config, **where)


class Eagle3Head(nn.Module):
    """An EAGLE-3 head; its parameters have the names of published folders.

    Args:
        config: sizes and variants.
        embeddings: (vocab, hidden), the target's token embeddings, or the head's own. They are shared, not copied, and
            are no part of ``state_dict``.
        device: where the parameters are created.
        dtype: of the parameters.
        owns_embeddings: the embeddings aren't the target's, so ``write_head`` writes them too. Always so for a head of
            another width than the target.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor
    embeddings: torch.Tensor

    def __init__(
        self,
        config: Eagle3Config,
        embeddings: torch.Tensor,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        owns_embeddings: bool = False,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config = config
        self.owns_embeddings = owns_embeddings or config.hidden_size != config.target_hidden_size
        width = config.num_states * config.target_hidden_size
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
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        self.rotary = Rotary(config)
        self._products = Products(
            self.fc,
            self._qkv,
            self.midlayer.self_attn.o_proj,
            self._gate_up,
            self.midlayer.mlp.down_proj,
            self.lm_head,
        )

    def _qkv(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attention = self.midlayer.self_attn
        return attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)

    def _gate_up(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.midlayer.mlp.gate_proj(x), self.midlayer.mlp.up_proj(x)

    def with_products(self, products: Products) -> "Eagle3Head":
        """Return this head with other implementations of its products; the rest is shared."""
        other = copy(self)
        other._products = products
        return other

    @property
    def target_ids(self) -> torch.Tensor:
        """(draft vocab,) the target's id of each draft id."""
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

    def enter(self, tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> LayerInputs:
        """Return attention's inputs for pairs of tokens (batch, n) and features (batch, n, hidden) at ``positions``."""
        embedded = embedding(tokens, self.embeddings).to(features.dtype)
        return self.enter_embedded(embedded, features, *self.rotary.at(positions, features.dtype))

    def enter_embedded(
        self, embedded: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> LayerInputs:
        """Return attention's inputs from the tokens' embeddings, (batch, n, hidden), and their positions' rotation."""
        layer, config = self.midlayer, self.config
        normed = layer.hidden_norm(features)
        x = torch.cat((layer.input_layernorm(embedded), normed), -1)
        query, key, value = (
            torch.unflatten(part, -1, (-1, config.head_dim)).transpose(1, 2) for part in self._products.qkv(x)
        )
        residual = normed if config.norm_before_residual else features
        return LayerInputs(residual, rotated(query, cos, sin), rotated(key, cos, sin), value)

    def leave(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output f, (batch, n, hidden), from attention's (batch, heads, n, head_dim)."""
        layer = self.midlayer
        a = residual + self._products.o(attended.transpose(1, 2).flatten(2))
        gate, up = self._products.gate_up(layer.post_attention_layernorm(a))
        return a + self._products.down(silu(gate) * up)

    def next_features(self, out: torch.Tensor) -> torch.Tensor:
        """Return the features that the next drafted pairs take from the layer's output."""
        after: torch.Tensor = self.norm(out) if self.config.norm_output else out
        return after

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        """Return the logits over the draft vocabulary, (…, draft vocab), of the layer's output."""
        return self._products.lm_head(self.norm(out))


def fused(head: Eagle3Head, prepare: Callable[[torch.Tensor], Product]) -> Eagle3Head:
    """Return a head with one product for queries, keys and values, and one for the two first matrices of the MLP.

    Args:
        head: shares its weights; those that are joined become views of the joined ones, so none is held twice.
        prepare: returns the product with a matrix, (outputs, inputs).
    """
    attention, mlp = head.midlayer.self_attn, head.midlayer.mlp
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    sizes = [part.out_features for part in parts]
    qkv = prepare(_joined(*parts))
    gate_up = prepare(_joined(mlp.gate_proj, mlp.up_proj))
    return head.with_products(
        Products(
            prepare(head.fc.weight),
            lambda x: torch.split(qkv(x), sizes, -1),
            prepare(attention.o_proj.weight),
            lambda x: gate_up(x).chunk(2, -1),
            prepare(mlp.down_proj.weight),
            prepare(head.lm_head.weight),
        )
    )


def _joined(*layers: nn.Linear) -> torch.Tensor:
    """Return the layers' matrices as one, of which theirs become views."""
    with torch.inference_mode(False):
        joined = torch.cat([layer.weight for layer in layers])
        parts = torch.split(joined.detach(), [layer.out_features for layer in layers])
        for layer, part in zip(layers, parts, strict=True):
            layer.weight.data = part
    return joined
