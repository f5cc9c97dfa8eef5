"""Block drafters' head: DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147), which draft a block in one pass.

The context C of a text's positions p = 0 … s - 1 is made of the target's hidden states, and the block's slots are those
of the anchor, the last token x_s, and of mask tokens after it:

    C_p = hidden_norm(fc(h_p))
    x_0 = emb(x_s), x_j = emb(mask token)
    each layer: x = x + o_proj(Attention(queries of x, keys and values of C and of x)); x = x + MLP(norm(x))
    logits = lm_head(norm(x))

Keys and values of the context are those of C in every layer, whatever lies around it, so they are computed without
attention. Slots attend to the whole context and to their block.

DSpark adds a Markov head to the logits of slot k, which depends on the token x_{k-1} before:

    vanilla: W2 W1[x_{k-1}]
    gated: W2 (sigmoid(G [h_k; W1[x_{k-1}]]) * W1[x_{k-1}])
    rnn: g, c, o = J [s; W1[x_{k-1}]; h_k], s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c), W2 tanh(o)

A cache's key-value heads are those of all layers, one layer after another.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from specdec.heads.base import KeyValues
from specdec.heads.config import BlockConfig
from specdec.heads.layers import DecoderLayer, LayerInputs, LayerProducts, Product, RMSNorm, fused_products
from specdec.heads.logits_map import LogitsMap
from specdec.heads.rotary import Rotary

# Returns attention, (batch, heads, n, head_dim), in a layer by its number.
Attend = Callable[[int, LayerInputs], torch.Tensor]


class MarkovHead(nn.Module):
    """DSpark's Markov head: the change of a slot's logits by the token before; see the module's equations."""

    def __init__(self, config: BlockConfig, **where: Any) -> None:
        super().__init__()
        hidden, rank = config.hidden_size, config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, rank, **where)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False, **where)
        if config.markov == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank, **where)
        if config.markov == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank, **where)
        self._kind = config.markov

    def forward(
        self, tokens: torch.Tensor, hidden: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what W2 is multiplied with, and the next states, (batch, n, rank) each.

        Args:
            tokens: (batch, n), the target's ids of the tokens before the slot.
            hidden: (batch, n, hidden), the slot's.
            states: (batch, n, rank), those of the path so far; zeros at the anchor.
        """
        before = self.markov_w1(tokens)
        if self._kind == "gated":
            before = torch.sigmoid(self.gate_proj(torch.cat((hidden, before), -1))) * before
        if self._kind != "rnn":
            return before, states
        gate, candidate, output = self.joint_proj(torch.cat((states, before, hidden), -1)).chunk(3, -1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * states + (1 - gate) * torch.tanh(candidate)


class BlockProducts(NamedTuple):
    """The products with a drafter's matrices, without biases; the Markov head's are its own."""

    fc: Product
    layers: tuple[LayerProducts, ...]
    output: Product


class BlockHead(nn.Module):
    """A block drafter; its parameters have the names of published folders.

    Args:
        config: sizes and variants.
        embeddings: (vocab, hidden), the target's token embeddings, or the head's own; shared, not copied.
        output: (draft vocab, hidden), the output matrix, in the parameters' dtype; likewise.
        device: where the parameters are created.
        dtype: of the parameters.

    Attributes:
        logits_map: the map from products with the output matrix to logits.
    """

    embeddings: torch.Tensor
    output: torch.Tensor
    d2t: torch.Tensor

    def __init__(
        self,
        config: BlockConfig,
        embeddings: torch.Tensor,
        output: torch.Tensor,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config, self.rotary = config, Rotary(config)
        self.logits_map = LogitsMap(config.logits_scale, config.softcap)
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        self.register_buffer("output", output.detach(), persistent=False)
        self.fc = nn.Linear(config.states_size, config.hidden_size, bias=False, **where)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **where)
        self.layers = nn.ModuleList(DecoderLayer(config, **where) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **where)
        self.markov_head = None if config.markov is None else MarkovHead(config, **where)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64, device=device))
        self._own_products: BlockProducts | None = None

    @property
    def _products(self) -> BlockProducts:
        """Those of torch, unless the drafter is a fused one; made anew, since a copy has other matrices."""
        layers = tuple(layer.products for layer in self._layers())
        return self._own_products or BlockProducts(self.fc, layers, lambda x: linear(x, self.output))

    def fused(self, prepare: Callable[[torch.Tensor], Product]) -> Self:
        """Return this drafter, which shares its weights, with the products of ``fused_products``."""
        layers = tuple(fused_products(layer, prepare) for layer in self._layers())
        other = copy(self)
        other._own_products = BlockProducts(prepare(self.fc.weight), layers, prepare(self.output))
        return other

    @property
    def target_ids(self) -> torch.Tensor:
        """(draft vocab,) the target's id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return the final states, (batch, slots, hidden), of blocks of tokens (batch, slots) at positions.

        Args:
            attend: called once for each layer, in order.
        """
        dtype = self.fc.weight.dtype
        x = embedding(tokens, self.embeddings).to(dtype) * self.config.embedding_scale
        return self.final_states(x, *self.rotary.at(positions, dtype), attend)

    def final_states(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attend: Attend,
        context: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the final states of blocks of scaled embeddings, (batch, slots, hidden).

        Args:
            attend: as for ``forward``.
            context: (batch, n, hidden), rows whose queries, keys and values lie before the block's; none by default.
        """
        for number, (layer, products) in enumerate(zip(self._layers(), self._products.layers, strict=True)):
            rows = layer.input_layernorm(x)
            rows = rows if context is None else torch.cat((context, rows), 1)
            inputs = layer.inputs(rows, x, cos, sin, products)
            x = layer.output(inputs.residual, attend(number, inputs), products)
        final: torch.Tensor = self.norm(x)
        return final

    def context_rows(self, states: torch.Tensor) -> torch.Tensor:
        """Return the rows of the context, (batch, n, hidden), that keys and values are products of."""
        rows: torch.Tensor = self.hidden_norm(self._products.fc(states))
        return rows

    def context(self, states: torch.Tensor, positions: torch.Tensor) -> KeyValues:
        """Return all layers' keys and values of the target's states, (batch, n, states size), at positions."""
        c = self.context_rows(states)
        cos, sin = self.rotary.at(positions, c.dtype)
        of_layers = [layer.keys_and_values(c, cos, sin) for layer in self._layers()]
        return KeyValues(*(torch.cat(each, 1) for each in zip(*of_layers, strict=True)))

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """Return the logits over the draft vocabulary, (…, draft vocab), of final states, without the Markov head's."""
        return self.logits_map(self._products.output(final))

    def no_key_values(self) -> KeyValues:
        """Return the keys and values of no positions. See ``DraftHead``."""
        shape = 1, self.config.num_layers * self.config.num_key_value_heads, 0, self.config.head_dim
        return KeyValues(self.fc.weight.new_zeros(shape), self.fc.weight.new_zeros(shape))

    def key_values(self, states: torch.Tensor, tokens: torch.Tensor, before: KeyValues) -> KeyValues:
        """Return the context's keys and values, which don't depend on tokens. See ``DraftHead``."""
        positions, _ = before.next_pairs(tokens.shape[1])
        return self.context(states, positions)

    def layer_of(self, cache: KeyValues, number: int) -> KeyValues:
        """Return a layer's keys and values of a cache."""
        heads = self.config.num_key_value_heads
        return KeyValues(*(each[:, number * heads : (number + 1) * heads] for each in cache))

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
