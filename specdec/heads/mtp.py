"""Multi-token-prediction modules (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2).

A module is a decoder layer of the target's own family over pairs of a hidden state and a token. Pair i consists of the
target's last hidden state h_i and the embedding of the next token x_{i+1}, and predicts x_{i+2}:

    f_i = norm(layer(projection(cat(embedding_norm(emb(x_{i+1})), hidden_norm(h_i)))))
    logits(x_{i+2}) = lm_head(f_i)

Embeddings and ``lm_head`` are the target's. A drafted token has no hidden state: its pair takes f of the pair before it
in place of h, after the norm, as transformers and SGLang do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding, linear

from specdec.heads.base import Continuations, HeadRunner, KeyValues, Noise, Pairs
from specdec.heads.logits_map import LogitsMap
from specdec.heads.torch_runner import most_probable, visible_slots, write_slots
from specdec.models.fused_attention import without_cudnn

# Takes new keys and values, (batch, heads, n, size) each, and returns those that the new queries may attend to.
Update = Callable[[torch.Tensor, torch.Tensor], KeyValues]


class MtpParts(NamedTuple):
    """The parts of a module; all but the projection are of the target's own modelling code.

    Attributes:
        layer: a decoder layer with attention to the whole text.
        norm: of the layer's output.
        rotary: returns cosines and sines for rows and positions.
        embedding_norm: of the token's embedding.
        hidden_norm: of the hidden state.
        projection: (hidden, 2 * hidden).
    """

    layer: nn.Module
    norm: nn.Module
    rotary: nn.Module
    embedding_norm: nn.Module
    hidden_norm: nn.Module
    projection: torch.Tensor


class MtpHead(nn.Module):
    """A multi-token-prediction module, which drafts from the target's last hidden state.

    Args:
        parts: the layer and what surrounds it, in one dtype and on one device.
        embeddings: (vocab, hidden), the target's.
        lm_head: (draft vocab, hidden), the target's rows of the first ids.
        hidden_first: the projection reads the hidden state before the embedding, as MiMo's does.
        cache_argument: the name of the layer's argument for a key-value cache.

    Attributes:
        logits_map: the target's map from products with ``lm_head`` to its logits.
    """

    embeddings: torch.Tensor
    lm_head: torch.Tensor
    target_ids: torch.Tensor

    def __init__(
        self,
        parts: MtpParts,
        embeddings: torch.Tensor,
        lm_head: torch.Tensor,
        hidden_first: bool = False,
        cache_argument: str = "cache",
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.rotary, self.embedding_norm, self.hidden_norm, projection = parts
        self.projection = nn.Parameter(projection, requires_grad=False)
        self.hidden_first, self._cache_argument, self.logits_map = hidden_first, cache_argument, LogitsMap()
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        self.register_buffer("lm_head", lm_head.detach(), persistent=False)
        self.register_buffer("target_ids", torch.arange(len(lm_head), device=lm_head.device), persistent=False)
        with torch.no_grad():
            self._no_key_values = self._form()

    def forward(
        self,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor,
        update: Update,
    ) -> torch.Tensor:
        """Return the features f, (batch, n, hidden), of pairs.

        Args:
            tokens: (batch, n).
            features: (batch, n, hidden), of the target or of the pair before.
            positions: (batch, n).
            visible: (batch, 1, n, slots), True for slots that a pair attends to.
            update: called once, with the pairs' own keys and values.
        """
        embedded = embedding(tokens, self.embeddings).to(features.dtype)
        normed = self.embedding_norm(embedded), self.hidden_norm(features)
        joined = torch.cat(normed[::-1] if self.hidden_first else normed, -1)
        rows = linear(joined, self.projection)
        arguments: dict[str, Any] = {
            "attention_mask": visible,
            "position_ids": positions,
            "position_embeddings": self.rotary(rows, positions),
            self._cache_argument: _LayerCache(update),
        }
        out: torch.Tensor = self.norm(self.layer(rows, **arguments))
        return out

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits over the draft vocabulary, (…, draft vocab), after pairs of these features."""
        return self.logits_map(linear(features, self.lm_head))

    def key_values(self, states: torch.Tensor, tokens: torch.Tensor, before: KeyValues) -> KeyValues:
        """Return the keys and values of pairs, in the layer's own form; see ``DraftHead``."""
        (positions, visible), found = before.next_pairs(tokens.shape[1]), list[KeyValues]()

        def update(keys: torch.Tensor, values: torch.Tensor) -> KeyValues:
            found.append(KeyValues(keys, values))
            return before.followed_by(found[0])

        self(tokens, states, positions, visible, update)
        return found[0]

    def no_key_values(self) -> KeyValues:
        """Return the keys and values of no pairs, (1, heads, 0, size) each."""
        return self._no_key_values

    def _form(self) -> KeyValues:
        """Return the keys and values of no pairs; their form is known to the layer's code alone."""
        found, zero = list[KeyValues](), self.target_ids.new_zeros((1, 1))

        def update(keys: torch.Tensor, values: torch.Tensor) -> KeyValues:
            found.append(KeyValues(keys[:, :, :0].clone(), values[:, :, :0].clone()))
            return KeyValues(keys, values)

        features = self.projection.new_zeros((1, 1, len(self.projection)))
        self(zero, features, zero, torch.ones_like(zero, dtype=torch.bool)[None, None], update)
        return found[0]


class _LayerCache:
    """The methods of transformers' ``Cache`` that a decoder layer calls."""

    def __init__(self, update: Update) -> None:
        self._update = update

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._update(keys, values)


class MtpRunner(HeadRunner):
    """Runs a module on the device of its weights.

    The layer is run for all pairs of a pass, since its own code computes keys, values and the rest together.
    """

    head: MtpHead

    @torch.inference_mode()
    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        device, stop = cache.keys.device, int(pairs.starts.max()) + pairs.tokens.shape[1]

        def update(keys: torch.Tensor, values: torch.Tensor) -> KeyValues:
            write_slots(cache, keys, values, pairs.starts)
            return KeyValues(cache.keys[:, :, :stop], cache.values[:, :, :stop])

        ids = torch.from_numpy(np.stack((pairs.tokens, pairs.positions))).to(device)
        every = Pairs(pairs.tokens, pairs.positions, pairs.starts, pairs.features, visible=pairs.visible)
        visible = torch.from_numpy(visible_slots(every, stop)).to(device)[:, None]
        with without_cudnn(device):
            out = self.head(ids[0], pairs.features, ids[1], visible, update)
        if pairs.last is not None:
            rows, last = torch.arange(len(pairs.last), device=device), torch.from_numpy(pairs.last).to(device)
            out = out[rows, last][:, None]
        draft_ids, log_probs = most_probable(self.head.logits(out), self.num_tokens, noise)
        return Continuations(draft_ids, log_probs, out)
