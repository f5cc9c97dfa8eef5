"""P-EAGLE for one text in float32, written from the paper without specdec and without any cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from tests.support.eagle3_reference import rms, rope
from tests.support.mtp_reference import Weights, attend, heads

EPS = 1e-6


def attended(weights: Weights, x: torch.Tensor, layer: dict[str, Any]) -> torch.Tensor:
    """Causal attention of a layer over rows of its input after its norm."""
    places, theta = torch.arange(len(x)), layer["rope_theta"]
    q, k, v = (heads(weights.project(x, f"self_attn.{name}_proj"), layer["head_dim"]) for name in "qkv")
    distances = places[:, None] - places
    seen = (distances >= 0) & (distances < layer.get("sliding_window", len(x)))
    attended = attend(rope(q, places, theta), rope(k, places, theta), v, seen)
    return weights.project(attended, "self_attn.o_proj")


def p_eagle_log_probs(
    tensors: dict[str, torch.Tensor],
    settings: dict[str, Any],
    embeddings: torch.Tensor,
    states: torch.Tensor,
    tokens: Sequence[int],
    depth: int,
) -> torch.Tensor:
    """Log-probabilities over the draft vocabulary, (depth, Vd), after states (n, 3H) and the n tokens after them."""
    layer, masks = settings["transformer_layer_config"], depth - 1
    ids = torch.tensor([*tokens, *[settings["mask_token_id"]] * masks])
    features = linear(torch.cat((states, tensors["mask_hidden"][0].expand(masks, -1))), tensors["fc.weight"])
    first = Weights(tensors, "layers.0.")
    embedded = rms(embeddings[ids], first("input_layernorm"), EPS)
    normed = rms(features, first("hidden_norm"), EPS)
    x = torch.cat((embedded, normed), -1)
    out = (normed if settings.get("norm_before_residual") else features) + attended(first, x, layer)
    out = out + first.mlp(rms(out, first("post_attention_layernorm"), EPS))
    for number in range(1, layer["num_hidden_layers"]):
        weights = Weights(tensors, f"layers.{number}.")
        out = out + attended(weights, rms(out, weights("input_layernorm"), EPS), layer)
        out = out + weights.mlp(rms(out, weights("post_attention_layernorm"), EPS))
    return linear(rms(out[-depth:], tensors["norm.weight"], EPS), tensors["lm_head.weight"]).log_softmax(-1)
