"""Draft heads of one decoder layer over pairs of a feature and a token: what EAGLE's versions share.

Pair i consists of a feature, made of the target's hidden states at position i, and the embedding of the next token
x_{i+1}; it stands at position i and predicts x_{i+2}. A drafted token has no target states: its pair takes the feature
from the layer's output at the pair before it. The modules compute what surrounds attention; drafting and training bring
the attention over their own keys and values.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import nn
from torch.nn.functional import embedding, linear, rms_norm, silu

from specdec.heads.base import KeyValues
from specdec.heads.config import PairHeadConfig
from specdec.heads.logits_map import LogitsMap
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


class LayerProducts(NamedTuple):
    """The products with a layer's matrices, without biases; each takes rows (…, inputs) and returns (…, outputs).

    Attributes:
        qkv: returns queries, keys and values.
        gate_up: returns the products with the MLP's two first matrices.
    """

    qkv: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    o: Product
    gate_up: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    down: Product


class HeadProducts(NamedTuple):
    """The products with a head's matrices, without biases."""

    fc: Product
    layer: LayerProducts
    lm_head: Product


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float, **where: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, **where))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """The projections of attention, whose queries, keys and values are of rows as wide as ``width``."""

    def __init__(self, config: PairHeadConfig, width: int, **where: Any) -> None:
        super().__init__()
        queries, pairs = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(width, queries, config.qkv_bias, **where)
        self.k_proj = nn.Linear(width, pairs, config.qkv_bias, **where)
        self.v_proj = nn.Linear(width, pairs, config.qkv_bias, **where)
        self.o_proj = nn.Linear(queries, config.hidden_size, config.o_bias, **where)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, **where)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, **where)


class MLP(nn.Module):
    """The matrices of the gated MLP."""

    def __init__(self, config: PairHeadConfig, **where: Any) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(*sizes, bias=False, **where) for _ in range(2))
        self.down_proj = nn.Linear(*sizes[::-1], bias=False, **where)


class PairLayer(nn.Module):
    """The decoder layer; a head adds the norms before attention that it has.

    Args:
        width: of the rows that queries, keys and values are computed from.
    """

    def __init__(self, config: PairHeadConfig, width: int, **where: Any) -> None:
        super().__init__()
        self._config = config
        self.self_attn = Attention(config, width, **where)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **where)
        self.mlp = MLP(config, **where)

    @property
    def products(self) -> LayerProducts:
        """Those of torch."""
        attention, mlp = self.self_attn, self.mlp
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        return LayerProducts(
            lambda x: tuple(linear(x, part.weight) for part in parts),
            lambda x: linear(x, attention.o_proj.weight),
            lambda x: (mlp.gate_proj(x), mlp.up_proj(x)),
            mlp.down_proj,
        )

    def inputs(
        self, x: torch.Tensor, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, products: LayerProducts
    ) -> LayerInputs:
        """Return attention's inputs, whose queries, keys and values are of rows ``x``, (batch, n, width)."""
        attention, parts = self.self_attn, products.qkv(x)
        if attention.q_proj.bias is not None:
            layers = attention.q_proj, attention.k_proj, attention.v_proj
            parts = tuple(part + layer.bias.to(x.dtype) for part, layer in zip(parts, layers, strict=True))
        query, key, value = map(self._by_head, parts)
        if self._config.qk_norm:
            query, key = attention.q_norm(query), attention.k_norm(key)
        return LayerInputs(residual, rotated(query, cos, sin), rotated(key, cos, sin), value)

    def keys_and_values(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> KeyValues:
        """Return the keys and values alone, of rows ``x`` as for ``inputs``."""
        attention = self.self_attn
        key, value = self._by_head(attention.k_proj(x)), self._by_head(attention.v_proj(x))
        if self._config.qk_norm:
            key = attention.k_norm(key)
        return KeyValues(rotated(key, cos, sin), value)

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(x, -1, (-1, self._config.head_dim)).transpose(1, 2)

    def output(self, residual: torch.Tensor, attended: torch.Tensor, products: LayerProducts) -> torch.Tensor:
        """Return the layer's output, (batch, n, hidden), from attention's, (batch, heads, n, head_dim)."""
        a, bias = residual + products.o(attended.transpose(1, 2).flatten(2)), self.self_attn.o_proj.bias
        if bias is not None:
            a = a + bias.to(a.dtype)
        gate, up = products.gate_up(self.post_attention_layernorm(a))
        return a + products.down(silu(gate) * up)


class DecoderLayer(PairLayer):
    """A decoder layer of Llama's or Qwen3's, whose input is of the head's width."""

    def __init__(self, config: PairHeadConfig, **where: Any) -> None:
        super().__init__(config, config.hidden_size, **where)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **where)

    def enter(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> LayerInputs:
        """Return attention's inputs from the layer's, (batch, n, hidden)."""
        return self.inputs(self.input_layernorm(x), x, cos, sin, self.products)

    def leave(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, (batch, n, hidden)."""
        return self.output(residual, attended, self.products)


class PairHead(nn.Module, ABC):
    """A head of one decoder layer; its parameters have the names of published folders.

    Args:
        config: the sizes.
        embeddings: (vocab, hidden), the target's token embeddings, or the head's own. They are shared, not copied, and
            are no part of ``state_dict``.

    Attributes:
        fc: maps the target's states, or what the layer reads, to the head's width.
        midlayer: the layer.
        lm_head: the output matrix, (draft vocab, hidden); ``logits_map`` maps the products with it to logits.
    """

    embeddings: torch.Tensor
    fc: nn.Linear
    midlayer: PairLayer
    lm_head: nn.Linear

    def __init__(self, config: PairHeadConfig, embeddings: torch.Tensor) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        self.rotary, self.logits_map = Rotary(config), LogitsMap()
        self._own_products: HeadProducts | None = None

    @property
    def _products(self) -> HeadProducts:
        """Those of torch, unless others were set; made anew, since a copy of the head has other matrices."""
        if self._own_products is not None:
            return self._own_products
        return HeadProducts(lambda x: linear(x, self.fc.weight), self.midlayer.products, self.lm_head)

    def with_products(self, products: HeadProducts) -> Self:
        """Return this head with other implementations of its products; the rest is shared."""
        other = copy(self)
        other._own_products = products
        return other

    @property
    @abstractmethod
    def target_ids(self) -> torch.Tensor:
        """(draft vocab,) the target's id of each draft id."""

    @abstractmethod
    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features, (…, hidden), of target states, (…, ``config.states_size``)."""

    def enter(self, tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor) -> LayerInputs:
        """Return attention's inputs for pairs of tokens (batch, n) and features (batch, n, hidden) at ``positions``."""
        embedded, dtype = embedding(tokens, self.embeddings), features.dtype
        return self.enter_embedded(embedded.to(dtype), features, *self.rotary.at(positions, dtype))

    @abstractmethod
    def enter_embedded(
        self, embedded: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> LayerInputs:
        """Return attention's inputs from the tokens' embeddings, (batch, n, hidden), and their positions' rotation."""

    def _inputs(self, x: torch.Tensor, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> LayerInputs:
        """Return attention's inputs, whose queries, keys and values are of rows ``x``, (batch, n, width)."""
        return self.midlayer.inputs(x, residual, cos, sin, self._products.layer)

    def no_key_values(self) -> KeyValues:
        """Return the keys and values of no pairs, (1, key-value heads, 0, head_dim) each."""
        none = self.fc.weight.new_zeros((1, self.config.num_key_value_heads, 0, self.config.head_dim))
        return KeyValues(none, none.clone())

    def key_values(self, states: torch.Tensor, tokens: torch.Tensor, before: KeyValues) -> KeyValues:
        """Return the keys and values of pairs; the rest of the layer isn't computed. See ``DraftHead``."""
        start = before.keys.shape[2]
        positions = torch.arange(start, start + tokens.shape[1], device=states.device)
        inputs = self.enter(tokens, self.fuse(states), positions[None])
        return KeyValues(inputs.key, inputs.value)

    def leave(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output f, (batch, n, hidden), from attention's (batch, heads, n, head_dim)."""
        return self.midlayer.output(residual, attended, self._products.layer)

    @abstractmethod
    def next_features(self, out: torch.Tensor) -> torch.Tensor:
        """Return the features that the next drafted pairs take from the layer's output."""

    @abstractmethod
    def logits(self, out: torch.Tensor) -> torch.Tensor:
        """Return the logits over the draft vocabulary, (…, draft vocab), of the layer's output."""


Head = TypeVar("Head", bound=PairHead)


def fused(head: Head, prepare: Callable[[torch.Tensor], Product]) -> Head:
    """Return a head with one product for queries, keys and values, and one for the two first matrices of the MLP.

    Args:
        head: shares its weights; those that are joined become views of the joined ones, so none is held twice.
        prepare: returns the product with a matrix, (outputs, inputs).
    """
    attention, mlp = head.midlayer.self_attn, head.midlayer.mlp
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    sizes = [part.out_features for part in parts]
    qkv, gate_up = prepare(_joined(*parts)), prepare(_joined(mlp.gate_proj, mlp.up_proj))
    return head.with_products(
        HeadProducts(
            prepare(head.fc.weight),
            LayerProducts(
                lambda x: torch.split(qkv(x), sizes, -1),
                prepare(attention.o_proj.weight),
                lambda x: gate_up(x).chunk(2, -1),
                prepare(mlp.down_proj.weight),
            ),
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
