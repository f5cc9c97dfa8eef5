"""Attention in two parts: the prefix without a mask, the tail under its own, merged by their log-sum-exps.

All nodes see the same of the prefix, so that heads of a group, which read the same keys, can stand below one another
as if they were more nodes: keys are read once for a group, and never repeated. Kernels for the prefix:

- CPUs: torch's fused kernel;
- CUDA, half precision: ``flash-attn`` where it is installed, else torch's own operator (neither was measured);
- elsewhere, and with soft caps that a kernel doesn't know: plain products.

The tail, short as a rule, is plain products; where it is long (a chunk of a prompt) CPUs take their fused kernel.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from specdec.attention.parts import ATTENTION, SplitMask
from specdec.errors import ModelError

_MANY_SCORES = 1 << 19  # 2 MiB; beyond, they aren't held all at once
_LARGEST_FLASH_HEAD = 256


class _Part(NamedTuple):
    """Attention over some of the slots, (rows, groups, heads of a group * width, head size), and its log-sum-exp."""

    attended: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Kind:
    scale: float
    softcap: float | None


def register() -> None:
    """Make it known to transformers as ``specdec_split``; doing so again changes nothing."""
    AttentionInterface.register(ATTENTION, split_attention)


def split_attention(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it.

    Args:
        query: (rows, heads, width, head size).
        key, value: (rows, groups, slots, head size), heads a multiple of groups.
        attention_mask: of the ``split`` compiler.
        scaling: of the scores; softcap: their bound; s_aux: attention sinks, (heads,).

    Returns:
        (rows, width, heads, head size), and None for the weights.

    Raises:
        ModelError: for other masks, and for a position bias.
    """
    if not isinstance(attention_mask, SplitMask) or others.get("position_bias") is not None:
        raise ModelError(f"{ATTENTION} needs masks of specdec's split compiler, and no position bias")
    rows, heads, width, size = query.shape
    groups = key.shape[1]
    kind = _Kind(size**-0.5 if scaling is None else scaling, softcap)
    folded = query.reshape(rows, groups, -1, size)
    parts = []
    if any(prefix.start < prefix.stop for prefix in attention_mask.prefixes):
        parts.append(_prefix(folded, key, value, attention_mask, kind))
    if attention_mask.shape[3]:
        parts.append(_tail(folded, key, value, attention_mask, kind))
    sinks = None if s_aux is None else s_aux.view(groups, -1).repeat_interleave(width, 1)
    output = query.new_empty(rows, width, heads, value.shape[3])
    output.transpose(1, 2).copy_(_merged(parts, sinks).reshape(rows, heads, width, -1))
    return output, None


def _merged(parts: list[_Part], sinks: torch.Tensor | None) -> torch.Tensor:
    """Each part's attention weighed by its share of the whole sum, in the precision of the log-sum-exps.

    Args:
        sinks: (groups, heads of a group * width); they have a share, and nothing to attend to.
    """
    if len(parts) == 1 and sinks is None:
        return parts[0].attended
    sums = [part.lse for part in parts]
    if sinks is not None:
        sums.append(sinks.to(sums[0].dtype).expand_as(sums[0]))
    shares = torch.stack(sums).softmax(0).unsqueeze(-1)
    merged = shares[0] * parts[0].attended
    for part, share in zip(parts[1:], shares[1:], strict=False):
        merged += share * part.attended
    return merged


def _prefix(folded: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: SplitMask, kind: _Kind) -> _Part:
    """Row by row, since each row has its own number of slots."""
    rows, groups, num_queries, _ = folded.shape
    attended = folded.new_zeros(rows, groups, num_queries, value.shape[3])
    lse = folded.new_full((rows, groups, num_queries), -torch.inf, dtype=_precise(folded.dtype))
    for row, prefix in enumerate(mask.prefixes):
        if prefix.start < prefix.stop:  # kernels end the process, or give a sum of one, where there are no slots
            one = slice(row, row + 1)
            attended[one], lse[one] = _without_mask(folded[one], key[one, :, prefix], value[one, :, prefix], kind)
    if mask.blind is not None:
        lse.view(rows, groups, -1, mask.shape[2]).masked_fill_(mask.blind[:, None, None], -torch.inf)
    return _Part(attended, lse)


def _without_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: _Kind) -> _Part:
    """By the fastest kernel that takes it."""
    size = max(key.shape[3], value.shape[3])
    has_flash = query.is_cuda and is_flash_attn_2_available()
    is_half = query.dtype in {torch.float16, torch.bfloat16}
    is_fused = query.device.type == "cpu" or (query.is_cuda and is_half and size <= _LARGEST_FLASH_HEAD)
    if not is_fused or (kind.softcap is not None and not has_flash):
        return _products(query, key, value, kind)
    q, k, v = (_widened(states, size) for states in (query, key, value))
    if has_flash:
        from flash_attn import flash_attn_func

        states = (tensor.transpose(1, 2) for tensor in (q, k, v))
        attended, lse, _ = flash_attn_func(
            *states, softmax_scale=kind.scale, softcap=kind.softcap or 0.0, return_attn_probs=True
        )
        attended = attended.transpose(1, 2)
    elif query.is_cuda:
        attended, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=kind.scale)
    else:
        attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=kind.scale)
    return _Part(attended[..., : value.shape[3]], lse)


def _widened(states: torch.Tensor, size: int) -> torch.Tensor:
    """Fused kernels want heads of one size; zeros change no score, and give columns that are cut off again."""
    missing = size - states.shape[3]
    return torch.nn.functional.pad(states, (0, missing)) if missing else states


def _tail(folded: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: SplitMask, kind: _Kind) -> _Part:
    """Attention over the tail's slots, gathered from each row."""
    rows, groups, num_queries, size = folded.shape
    which = torch.arange(rows, device=key.device)[:, None]
    k, v = (states.transpose(1, 2)[which, mask.slots].transpose(1, 2) for states in (key, value))
    num_scores = rows * groups * num_queries * mask.shape[3]
    if folded.device.type != "cpu" or kind.softcap is not None or num_scores < _MANY_SCORES:
        return _products(folded, k, v, kind, mask)
    size = max(size, value.shape[3])
    query = folded.reshape(rows, -1, mask.shape[2], folded.shape[3])
    attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(_widened(states, size) for states in (query, k, v)), attn_mask=mask, scale=kind.scale
    )
    return _Part(
        attended[..., : value.shape[3]].reshape(rows, groups, num_queries, -1), lse.reshape(rows, groups, num_queries)
    )


def _products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: _Kind, mask: SplitMask | None = None
) -> _Part:
    """Product, softmax, product, in float32 at least."""
    precise = _precise(query.dtype)
    scores = torch.matmul(query.to(precise), key.to(precise).transpose(2, 3)).mul_(kind.scale)
    if kind.softcap is not None:
        scores.div_(kind.softcap).tanh_().mul_(kind.softcap)
    if mask is not None:
        rows, groups, _, slots = scores.shape
        scores.view(rows, groups, -1, mask.shape[2], slots).add_(mask[:, :, None])
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    return _Part(torch.matmul(weights, value.to(precise)).div_(total), total.log_().add_(top).squeeze(-1))


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
