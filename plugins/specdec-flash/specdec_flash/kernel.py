"""Attention in two parts, the prefix without a mask and the tail under its mask, merged by their log-sum-exps.

All nodes see the same prefix, so the heads of a group, which read the same keys, are passed as if they were more nodes:
keys are read once per group, and never repeated. Kernels for the prefix:

- CPUs: torch's fused kernel;
- CUDA, half precision: ``flash-attn`` if it is installed (pip install flash-attn --no-build-isolation), else torch's
  own operator (neither was tried or measured);
- other devices, and soft caps that a kernel doesn't support: plain products.

The tail is computed by the same fused kernel on CPUs, and by plain products elsewhere.
"""

import importlib
from typing import Any, NamedTuple

import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from transformers.utils import is_flash_attn_2_available

from specdec.errors import ModelError, in_one_line
from specdec.masks import AttentionKind
from specdec.models.leaf_call import leaf_call
from specdec_flash.parts import ATTENTION, SplitMask


def import_flash_attn() -> None:
    """Import ``flash-attn`` if it is installed; called before a model runs, since the self-test would hide the error.

    Raises:
        ModelError: if it can't be imported.
    """
    if is_flash_attn_2_available():
        try:
            importlib.import_module("flash_attn")
        except (ImportError, OSError) as error:
            remedy = "pip install flash-attn --no-build-isolation builds it against the installed torch; without it, "
            raise ModelError(
                f"flash-attn is installed but broken: {in_one_line(error)}; {remedy}torch's own kernel is used"
            ) from error


class _Part(NamedTuple):
    """Attention over part of the slots, (rows, groups, heads of a group * width, head size), and its log-sum-exp."""

    attended: torch.Tensor
    lse: torch.Tensor


@leaf_call
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
    """Compute attention in two parts; transformers calls it in each layer.

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
    rows, heads, width, _ = query.shape
    groups = key.shape[1]
    kind = AttentionKind.of(query, scaling, softcap, s_aux)
    parts = []
    if any(prefix.start < prefix.stop for prefix in attention_mask.prefixes):
        parts.append(_prefix(_folded(query, groups), key, value, attention_mask, kind))
    if attention_mask.shape[3]:
        parts.append(_tail(query, key, value, attention_mask, kind))
    sinks = None if s_aux is None else s_aux.view(groups, -1).repeat_interleave(width, 1)
    output = query.new_empty(rows, width, heads, value.shape[3])
    output.transpose(1, 2).copy_(_merged(parts, sinks).reshape(rows, heads, width, -1))
    return output, None


def _folded(query: torch.Tensor, groups: int) -> torch.Tensor:
    """Fold the heads of a group into the width: (rows, groups, heads of a group * width, head size)."""
    return query.reshape(len(query), groups, -1, query.shape[3])


def _merged(parts: list[_Part], sinks: torch.Tensor | None) -> torch.Tensor:
    """Merge the parts, each weighted by its share of the whole sum, in the precision of the log-sum-exps.

    Args:
        sinks: (groups, heads of a group * width); they have a share of the sum, with value 0.
    """
    attended, lse = parts[0]
    for part in parts[1:]:
        share = torch.sigmoid(part.lse - lse).unsqueeze(-1)
        attended = torch.lerp(attended.to(share.dtype), part.attended.to(share.dtype), share)
        lse = torch.logaddexp(lse, part.lse)
    return attended if sinks is None else attended * torch.sigmoid(lse - sinks).unsqueeze(-1)


def _prefix(
    folded: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: SplitMask, kind: AttentionKind
) -> _Part:
    """Compute the prefix part row by row, since each row has its own number of slots."""
    if len(folded) == 1:
        part = _without_mask(folded, key[:, :, mask.prefixes[0]], value[:, :, mask.prefixes[0]], kind)
    else:
        shape = folded.shape[:3]
        part = _Part(folded.new_zeros(*shape, value.shape[3]), folded.new_zeros(shape, dtype=_precise(folded.dtype)))
        for row, prefix in enumerate(mask.prefixes):
            if prefix.start < prefix.stop:  # without slots, kernels crash the process or return a sum of 1
                one = slice(row, row + 1)
                found = _without_mask(folded[one], key[one, :, prefix], value[one, :, prefix], kind)
                part.attended[one], part.lse[one] = found
    if mask.blind is not None:
        by_node = part.lse.view(*part.lse.shape[:2], -1, mask.shape[2])
        by_node.masked_fill_(mask.blind[:, None, None], -torch.inf)
    return part


def _without_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: AttentionKind) -> _Part:
    """Compute attention without a mask, by the fastest kernel that supports it."""
    size = max(key.shape[3], value.shape[3])
    q, k, v = (_widened(states, size) for states in (query, key, value))
    if q.is_cpu and kind.softcap is None:
        attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=kind.scale)
    elif not q.is_cuda or not can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, False)):
        return _products(query, key, value, kind)
    elif is_flash_attn_2_available():
        from flash_attn import flash_attn_func

        states = (tensor.transpose(1, 2) for tensor in (q, k, v))
        attended, lse, _ = flash_attn_func(
            *states, softmax_scale=kind.scale, softcap=kind.softcap or 0.0, return_attn_probs=True
        )
        attended = attended.transpose(1, 2)
    elif kind.softcap is None:
        attended, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=kind.scale)
    else:
        return _products(query, key, value, kind)
    return _Part(attended[..., : value.shape[3]], lse)


def _widened(states: torch.Tensor, size: int) -> torch.Tensor:
    """Pad heads with zeros to one size, as fused kernels need; scores don't change, and columns are cut off later."""
    missing = size - states.shape[3]
    return torch.nn.functional.pad(states, (0, missing)) if missing else states


def _tail(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: SplitMask, kind: AttentionKind) -> _Part:
    """Compute attention over the tail's slots, gathered from each row."""
    folded = _folded(query, key.shape[1])
    k, v = (_gathered(states, mask.slots) for states in (key, value))
    if not query.is_cpu or kind.softcap is not None:
        return _products(folded, k, v, kind, mask)
    size = max(key.shape[3], value.shape[3])
    attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(_widened(states, size) for states in (query, k, v)), attn_mask=mask, scale=kind.scale
    )
    if len(mask) > 1:  # a shorter tail is padded; for no slots the kernel returns 0, as for a sum of 1
        lse = lse.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return _Part(attended[..., : value.shape[3]].reshape(*folded.shape[:3], -1), lse.reshape(folded.shape[:3]))


def _gathered(states: torch.Tensor, slots: torch.Tensor | slice) -> torch.Tensor:
    """Return the keys or values of each row's tail, ``(rows, groups, tail slots, head size)``."""
    if isinstance(slots, slice):
        return states[:, :, slots]
    rows = torch.arange(len(states), device=states.device)[:, None]
    return states.transpose(1, 2)[rows, slots].transpose(1, 2)


def _products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: AttentionKind, mask: SplitMask | None = None
) -> _Part:
    """Compute attention by plain products and a softmax, in float32 or better."""
    precise = _precise(query.dtype)
    scores = torch.matmul(query.to(precise), key.to(precise).transpose(2, 3)).mul_(kind.scale)
    if kind.softcap is not None:
        scores.div_(kind.softcap).tanh_().mul_(kind.softcap)
    if mask is not None:
        rows, groups, _, slots = scores.shape
        scores.view(rows, groups, -1, mask.shape[2], slots).add_(mask[:, :, None])
    top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(precise).min)  # finite even if a row sees nothing
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    attended = torch.matmul(weights, value.to(precise)).div_(total.clamp(min=torch.finfo(precise).tiny))
    return _Part(attended, total.log_().add_(top).squeeze(-1))


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
