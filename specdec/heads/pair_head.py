"""Draft heads of one decoder layer over pairs of a feature and a token: what EAGLE's versions share.

Pair i consists of a feature, made of the target's hidden states at position i, and the embedding of the next token
x_{i+1}; it stands at position i and predicts x_{i+2}. A drafted token has no target states: its pair takes the feature
from the layer's output at the pair before it. The modules compute what surrounds attention; drafting and training bring
the attention over their own keys and values.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Self, TypeVar

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from specdec.heads.base import KeyValues
from specdec.heads.config import PairHeadConfig
from specdec.heads.layers import LayerInputs, LayerProducts, PairLayer, Product, fused_products
from specdec.heads.logits_map import LogitsMap
from specdec.heads.rotary import Rotary


class HeadProducts(NamedTuple):
    """The products with a head's matrices, without biases."""

    fc: Product
    layer: LayerProducts
    lm_head: Product


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
    """Return a head, which shares its weights, with the products of ``fused_products``."""
    products = fused_products(head.midlayer, prepare)
    return head.with_products(HeadProducts(prepare(head.fc.weight), products, prepare(head.lm_head.weight)))
