"""Multi-token prediction for one text in float32, written from the reports without specdec and without any cache.

The decoder layers of MiMo (Qwen2's) and Qwen3.5 are written by hand. Those of experts and latent attention are the last
layer of a longer model of transformers, called over the whole text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from tests.support.eagle3_reference import rms, rope
from tests.support.mtp_checkpoints import FAMILIES, LAYOUTS, NUM_LAYERS

Layer = Callable[[torch.Tensor], torch.Tensor]


class Weights:
    """A checkpoint's tensors below a prefix."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __call__(self, name: str) -> torch.Tensor:
        return self._tensors[f"{self._prefix}{name}.weight"]

    def project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self(name), self._tensors.get(f"{self._prefix}{name}.bias"))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return linear(silu(linear(x, self("mlp.gate_proj"))) * linear(x, self("mlp.up_proj")), self("mlp.down_proj"))


def heads(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.unflatten(-1, (-1, size)).transpose(0, 1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
    """Causal attention, or to what is seen, (n, n)."""
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    return scaled_dot_product_attention(q, k, v, seen, is_causal=seen is None).transpose(0, 1).flatten(1)


def mimo_layer(weights: Weights, settings: dict[str, Any]) -> Layer:
    size, eps = settings["hidden_size"] // settings["num_attention_heads"], 1e-6

    def layer(x: torch.Tensor) -> torch.Tensor:
        y, places = rms(x, weights("input_layernorm"), eps), torch.arange(len(x))
        q, k, v = (heads(weights.project(y, f"self_attn.{name}_proj"), size) for name in "qkv")
        attended = attend(rope(q, places, settings["rope_theta"]), rope(k, places, settings["rope_theta"]), v)
        x = x + weights.project(attended, "self_attn.o_proj")
        return x + weights.mlp(rms(x, weights("post_attention_layernorm"), eps))

    return layer


def qwen3_5_layer(weights: Weights, settings: dict[str, Any]) -> Layer:
    size, eps = settings["head_dim"], 1e-6
    rotated = size // 4

    def turn(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((rope(x[..., :rotated], torch.arange(x.shape[1]), 10000.0), x[..., rotated:]), -1)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = rms(x, 1 + weights("input_layernorm"), eps)
        q, gate = heads(weights.project(y, "self_attn.q_proj"), 2 * size).chunk(2, -1)
        k, v = (heads(weights.project(y, f"self_attn.{name}_proj"), size) for name in "kv")
        q, k = rms(q, 1 + weights("self_attn.q_norm"), eps), rms(k, 1 + weights("self_attn.k_norm"), eps)
        attended = attend(turn(q), turn(k), v) * gate.transpose(0, 1).flatten(1).sigmoid()
        x = x + weights.project(attended, "self_attn.o_proj")
        return x + weights.mlp(rms(x, 1 + weights("post_attention_layernorm"), eps))

    return layer


def longer_layer(longer: Any) -> Layer:
    """The last layer of a model."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        decoder, places = longer.model, torch.arange(len(x))[None]
        mask = torch.ones(1, 1, len(x), len(x), dtype=torch.bool).tril()
        rotation = decoder.rotary_emb(x[None], places)
        out: torch.Tensor = decoder.layers[NUM_LAYERS](x[None], attention_mask=mask, position_embeddings=rotation)
        return out[0]

    return layer


class MtpReference:
    """A module from a checkpoint's tensors, applied to its own output for further tokens."""

    def __init__(self, family: str, tensors: Mapping[str, torch.Tensor], longer: Any) -> None:
        _, settings, layout = FAMILIES[family]
        prefix, names = LAYOUTS[layout]
        self.weights, self.embeddings = Weights(tensors, ""), tensors["model.embed_tokens.weight"]
        self.lm_head = tensors.get("lm_head.weight", self.embeddings)
        self.embedding_norm, self.hidden_norm, self.projection, self.norm = names.split()
        self.hidden_first, self.one, self.eps = layout == "mimo", float(layout == "qwen"), longer.config.rms_norm_eps
        by_hand = {"mimo": mimo_layer, "qwen3_5": qwen3_5_layer}.get(family)
        self.layer = longer_layer(longer) if by_hand is None else by_hand(Weights(tensors, prefix), settings)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, self.one + self.weights(name), self.eps)

    def features(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self._norm(self.embeddings[tokens], self.embedding_norm)
        normed = self._norm(states, self.hidden_norm)
        joined = torch.cat((normed, embedded) if self.hidden_first else (embedded, normed), -1)
        return self._norm(self.layer(linear(joined, self.weights(self.projection))), self.norm)

    def after(self, states: torch.Tensor, tokens: Sequence[int], drafted: Sequence[int] = ()) -> torch.Tensor:
        """Log-probabilities after states (n, hidden), the n tokens after them, and drafted tokens."""
        states, fed = states.clone(), list(tokens)
        for token in (*drafted, None):
            last = self.features(states, torch.tensor(fed))[-1:]
            if token is not None:
                states, fed = torch.cat((states, last)), [*fed, token]
        return linear(last[0], self.lm_head).log_softmax(-1)

    def grow(self, states: torch.Tensor, tokens: Sequence[int], width: int, depth: int, total: int) -> dict[Any, float]:
        """EAGLE-2's tree: the ``total`` most probable of its paths with their log-probabilities."""
        found: dict[tuple[int, ...], float] = {}
        level: dict[tuple[int, ...], float] = {(): 0.0}
        for _ in range(depth):
            children = {}
            for path, score in level.items():
                values, ids = self.after(states, tokens, path).topk(width)
                children |= {
                    (*path, int(token)): score + float(value) for token, value in zip(ids, values, strict=True)
                }
            found |= children
            level = dict(sorted(children.items(), key=lambda each: -each[1])[:width])
        return dict(sorted(found.items(), key=lambda each: -each[1])[:total])
