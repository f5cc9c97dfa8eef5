"""The layers of trained heads: Llama's and Qwen3's, with attention left to those who have keys and values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm, silu

from specdec.heads.base import KeyValues
from specdec.heads.config import PairHeadConfig
from specdec.heads.rotary import rotated


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


def fused_products(layer: PairLayer, prepare: Callable[[torch.Tensor], Product]) -> LayerProducts:
    """Return a layer's products with one for queries, keys and values, and one for the two first matrices of the MLP.

    Args:
        layer: its matrices that are joined become views of the joined ones, so none is held twice.
        prepare: returns the product with a matrix, (outputs, inputs).
    """
    attention, mlp = layer.self_attn, layer.mlp
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    sizes = [part.out_features for part in parts]
    qkv, gate_up = prepare(_joined(*parts)), prepare(_joined(mlp.gate_proj, mlp.up_proj))
    return LayerProducts(
        lambda x: torch.split(qkv(x), sizes, -1),
        prepare(attention.o_proj.weight),
        lambda x: gate_up(x).chunk(2, -1),
        prepare(mlp.down_proj.weight),
    )


def _joined(*layers: nn.Linear) -> torch.Tensor:
    """Return the layers' matrices as one, of which theirs become views."""
    with torch.inference_mode(False):
        joined = torch.cat([layer.weight for layer in layers])
        parts = torch.split(joined.detach(), [layer.out_features for layer in layers])
        for layer, part in zip(layers, parts, strict=True):
            layer.weight.data = part
    return joined


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
