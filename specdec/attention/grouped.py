"""Grouped-query attention that reads keys and values where they lie.

Given a mask, transformers repeats keys and values for every query head before it calls torch's fused kernel: copies as
long as the context, in each layer and step. The kernel for CPUs takes grouped heads as they are, with the same bits.
"""

from typing import Any

import torch
from transformers import AttentionInterface

NAME = "specdec_grouped"


def is_of_use(config: Any, device: torch.device) -> bool:
    """Whether a model's own attention is the one that repeats keys, and the kernel here can do without."""
    heads = getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None)
    return device.type == "cpu" and config._attn_implementation == "sdpa" and groups is not None and groups != heads


def register() -> None:
    """Make it known to transformers under ``NAME``; doing so again changes nothing."""
    AttentionInterface.register(NAME, grouped_attention)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it, always under a mask that says all.

    Args:
        query: (rows, heads, width, head size).
        key, value: (rows, groups, slots, head size), heads a multiple of groups.
        attention_mask: additive, (rows, 1, width, slots).

    Returns:
        (rows, width, heads, head size), and None for the weights.
    """
    if others.get("position_bias") is not None or key.shape[-1] != value.shape[-1]:
        output: tuple[torch.Tensor, None] = AttentionInterface()["sdpa"](
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return output
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None
