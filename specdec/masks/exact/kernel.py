"""Attention whose bits depend only on what a node sees.

Other kernels sum over cache slots in an order that depends on the draft tree's layout. Here a node's sum has two parts:

- a closed region (``regions.py``), the same slots in the same order for plain decoding and for any tree, without a
  mask, by a kernel whose rows are independent;
- open slots, summed in fixed point: weights p and values V are rounded to a grid on which every partial sum is exact
  in float64, so neither the order nor the library matters.

Bits that are exact: p lies on a grid of 2^-g in [0, 1], V on one of 2^-h, so a partial sum of p V is a multiple of
2^-(g+h), and exact while sum p |V| < 2^(53-g-h): 2^17 for g + h = 36 (``_GRIDS``). Float32 has more digits than that.
There p is the sum of two limbs, each with a product of its own: a multiple of 2^-12, and the remainder, at most 2^-13
and a multiple of 2^-24. V is on a grid of 2^-25 or coarser, except values between -1/4 and -1/8, which keep one digit
more. So these sums consist of multiples of 2^-38 and 2^-50, and are exact while sum |V| < 2^15. There are at most 160
open slots, 223 under a window, so everything is exact if no |V| exceeds 146. Above that, the order could matter if the
weights are that flat.

That rows of products and of the fused kernel are independent, and that scores don't depend on their slot, are
properties of the libraries: ``specdec/runtime/probes/walk.py`` tests them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from specdec.errors import ModelError
from specdec.masks.base import AttentionKind
from specdec.masks.exact.encoder_states import encoder_regions
from specdec.masks.exact.regions import ATTENTION, Region, found_regions, with_regions
from specdec.masks.exact.stacks import Stack, stacks_of
from specdec.models.leaf_call import leaf_call

_ROWS = 4  # libraries compute products of fewer rows in another way, with other bits
_FEWEST_SLOTS = 32  # so do scores of fewer slots
_COLUMNS = 16  # in products of fewer columns a row's bits were seen to depend on its place among the rows
_SMALLEST_FUSED_HEAD = 32  # with fewer, rows of the fused kernel in half precision were seen to depend on one another


@dataclass(frozen=True, slots=True)
class _Grid:
    """Grid spacings as exponents of two: of values, and of the limbs of the weights."""

    weights: tuple[int, ...]
    values: int


_LOWEST_EXPONENT = -60.0
# bfloat16 values above 2^-12 and float16 values above 2^-9 are multiples of 2^-20 already.
_GRIDS = {
    torch.bfloat16: _Grid((16,), 20),
    torch.float16: _Grid((16,), 20),
    torch.float32: _Grid((12, 24), 25),
}
# By exponent, the number that _round_to adds; as tensors, since a Python number is converted in every operation.
_LARGE = {
    exponent: torch.tensor(1.5 * 2.0 ** (23 - exponent), dtype=torch.float32, device="cpu")
    for grid in _GRIDS.values()
    for exponent in (*grid.weights, grid.values)
}


def register() -> None:
    """Register this attention with transformers as ``specdec_exact``; a second call has no effect.

    Afterwards ``model.set_attn_implementation("specdec_exact")`` lets transformers' own ``generate`` use it.
    """
    AttentionInterface.register(ATTENTION, exact_attention)
    AttentionMaskInterface.register(ATTENTION, visibility_mask)


def uncovered(dtype: torch.dtype) -> str:
    """Return why exact attention doesn't support a dtype, or ""."""
    return "" if dtype in _GRIDS else f"{ATTENTION} supports bfloat16, float16 and float32, not {dtype}"


def visibility_mask(*args: Any, kv_offset: int = 0, **kwargs: Any) -> torch.Tensor:
    """Return transformers' boolean mask with its regions, ``(rows, 1, width, slots)``; never None."""
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: torch.Tensor = sdpa_mask(*args, kv_offset=kv_offset, **kwargs)
    if not mask.any(-1).all():
        raise ModelError(f"{ATTENTION} doesn't support padded prompts: give prompts of one length, or one at a time")
    return with_regions(mask, found_regions(mask, int(kv_offset)))


@leaf_call
def exact_attention(  # noqa: PLR0913, PLR0917 - the arguments are transformers'
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
    """Compute attention; called by transformers in each layer.

    Args:
        query: (rows, heads, width, head size).
        key, value: (rows, groups, slots, head size), heads a multiple of groups.
        attention_mask: boolean, (rows, 1, width, slots).
        scaling: of the scores; softcap: their bound; s_aux: attention sinks, (heads,).

    Returns:
        (rows, width, heads, head size), and None for the weights.

    Raises:
        ModelError: for an unsupported kind of attention.
    """
    found = encoder_regions(module, attention_mask, query, key)
    is_own_text = found is None
    mask = _covered_mask(query.dtype, attention_mask, others.get("position_bias"), is_own_text)
    if found is None:
        known: tuple[Region, ...] | None = getattr(mask, "regions", None)
        found = tuple(found_regions(mask)) if known is None else known
    num_groups = key.shape[1]
    kind = AttentionKind.of(query, scaling, softcap, s_aux)
    if len(query) == len(found) == 1 and found[0].nodes == slice(0, query.shape[2]):
        return _attend(query[0], key[0], value[0], found[0], kind).to(query.dtype).flatten(1, 2)[None], None
    num_heads = query.shape[1] // num_groups
    output = query.new_zeros(len(query), query.shape[2], num_groups, num_heads, value.shape[3])
    stacks: Sequence[Stack] = ()
    alone: Sequence[Region] = found
    if s_aux is None and is_own_text:
        stacks, alone = _stacks(mask, found, num_heads, num_groups * value.shape[3])
    grouped = query.reshape(len(query), num_groups, num_heads, *query.shape[2:]) if stacks else query
    for stack in stacks:
        stack.put(output, _attend_stacked(grouped, key, value, stack, kind))
    for region in alone:
        attended = _attend(query[region.row, :, region.nodes], key[region.row], value[region.row], region, kind)
        # Writing to a slice converts the dtype; nodes selected by number must be converted first.
        output[region.row, region.nodes] = attended if isinstance(region.nodes, slice) else attended.to(query.dtype)
    return output.flatten(2, 3), None


def _covered_mask(dtype: torch.dtype, mask: Any, position_bias: object, is_own_text: bool) -> Any:
    """Return the mask, or what came with an encoder's states; raises ModelError for attention that isn't covered."""
    if fault := uncovered(dtype):
        raise ModelError(f"{fault}: use another attention")
    if position_bias is not None or (is_own_text and (mask is None or mask.dtype != torch.bool)):
        raise ModelError(
            f"{ATTENTION} needs a boolean mask and no position bias, as transformers' causal models give it"
        )
    return mask


def _stacks(
    mask: torch.Tensor, regions: tuple[Region, ...], num_heads: int, slot_size: int
) -> tuple[Sequence[Stack], Sequence[Region]]:
    """Return the stacks of a pass and the regions outside of them; cached with the mask, for all layers."""
    found: dict[tuple[int, int], tuple[list[Stack], list[Region]]] = mask.__dict__.setdefault("stacks", {})
    key = num_heads, slot_size
    if key not in found:
        found[key] = stacks_of(regions, num_heads, slot_size, _ROWS, _FEWEST_SLOTS)
    return found[key]


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, region: Region, kind: AttentionKind) -> torch.Tensor:
    """Return one region's attention, ``(nodes, groups, heads of a group, head size)``, float64.

    Args:
        q: (heads, nodes, head size).
        k, v: (groups, slots, head size).
    """
    num_nodes, num_groups = q.shape[1], len(k)
    num_heads = len(q) // num_groups
    num_rows = num_heads * num_nodes
    # The heads of a group read the same keys: one product for all.
    rows = _filled_up(q.reshape(num_groups, num_rows, -1), num_rows + -num_rows % _ROWS)
    keys = _filled_up(region.take_open(k), _FEWEST_SLOTS)
    values = _filled_up(region.take_open(v), _FEWEST_SLOTS)
    num_open = keys.shape[1]
    # The closed region counts as one more slot, whose score is its log-sum-exp; a sink as one with value 0.
    scores, closed = [_scores(rows, keys, kind, region.bias(num_heads, rows.shape[1], num_open))], None
    if region.closed.stop:
        closed, lse = _closed(rows, k[:, region.closed], v[:, region.closed], kind)
        scores.append(lse)
    if kind.sinks is not None:
        sinks = kind.sinks.float().view(num_groups, -1, 1).repeat_interleave(num_nodes, 1)
        scores.append(_filled_up(sinks, rows.shape[1]))
    sums = _joined(scores, values, closed, _GRIDS[q.dtype])
    return sums[:, :num_rows].view(num_groups, num_heads, num_nodes, -1).permute(2, 0, 1, 3)


def _attend_stacked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stack: Stack, kind: AttentionKind
) -> torch.Tensor:
    """Return a stack's attention, ``(regions, groups, rows of products, head size)``, float64.

    Args:
        q: (rows, groups, heads of a group, width, head size).
        k, v: (rows, groups, slots, head size).
    """
    rows, keys, values = stack.take_rows(q), stack.take_open(k), stack.take_open(v)
    num_regions, num_groups = rows.shape[:2]
    bias = stack.bias.expand(-1, num_groups, -1, -1).flatten(0, 1)
    scores = [_scores(rows.flatten(0, 1), keys.flatten(0, 1), kind, bias)]
    closed = None
    if any(region.closed.stop for region in stack.regions):
        closed = rows.new_zeros(num_regions, num_groups, stack.num_rows, v.shape[3], dtype=torch.float32)
        lse = rows.new_full((num_regions, num_groups, stack.num_rows, 1), -torch.inf, dtype=torch.float32)
        for number, region in enumerate(stack.regions):
            if region.closed.stop:
                own_keys, own_values = k[region.row, :, region.closed], v[region.row, :, region.closed]
                closed[number], lse[number] = _closed(rows[number], own_keys, own_values, kind)
        scores.append(lse.flatten(0, 1))
        closed = closed.flatten(0, 1)
    sums = _joined(scores, values.flatten(0, 1), closed, _GRIDS[q.dtype])
    return sums.reshape(num_regions, num_groups, *sums.shape[1:])


def _joined(scores: list[torch.Tensor], values: torch.Tensor, closed: torch.Tensor | None, grid: _Grid) -> torch.Tensor:
    """Return the sums over open slots and the closed region, ``(products, rows, head size)``, float64."""
    num_open, num_limbs = values.shape[1], len(grid.weights)
    limbs = _softmax_weights(scores, grid)
    sums = _whole(_exact_sum(limbs[..., :num_open], values, grid), num_limbs)
    if closed is not None:
        sums.addcmul_(_whole(limbs[..., num_open : num_open + 1], num_limbs), closed)
    return sums.div_(_whole(limbs.sum(-1, keepdim=True), num_limbs))


def _whole(limbs: torch.Tensor, num_limbs: int) -> torch.Tensor:
    """Return the sum of limbs, ``(groups, rows, size)``, of ``(groups, limbs * rows, size)``."""
    if num_limbs == 1:
        return limbs
    coarse, fine = limbs.chunk(2, 1)
    return coarse + fine


def _filled_up(states: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Pad ``(groups, rows, size)`` with rows of zeros."""
    missing = num_rows - states.shape[1]
    return torch.nn.functional.pad(states, (0, 0, 0, missing)) if missing > 0 else states


def _scores(rows: torch.Tensor, keys: torch.Tensor, kind: AttentionKind, bias: torch.Tensor) -> torch.Tensor:
    """Return scores in float32, ``(groups, rows, slots)``."""
    q, k = rows.float(), keys.float().transpose(1, 2)
    if kind.softcap is None:
        return torch.baddbmm(bias, q, k, alpha=kind.scale)
    capped = torch.bmm(q, k).mul_(kind.scale / kind.softcap).tanh_()
    return capped.mul_(kind.softcap).add_(bias)


def _closed(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kind: AttentionKind
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention over the closed region, (groups, rows, head size), and its log-sum-exp, (groups, rows, 1)."""
    if rows.is_cpu and kind.softcap is None and keys.shape == values.shape:
        if rows.dtype == torch.float16 or rows.shape[2] < _SMALLEST_FUSED_HEAD:  # float16's own kernel is slower, too
            rows, keys, values = rows.float(), keys.float(), values.float()
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        attended, lse = fused(rows[None], keys[None], values[None], scale=kind.scale)
        return attended[0], lse[0].unsqueeze(-1)
    scores = _scores(rows, keys, kind, rows.new_zeros((), dtype=torch.float32))
    top = scores.amax(-1, keepdim=True)
    size = values.shape[2]
    with_ones = torch.nn.functional.pad(values.float(), (0, _COLUMNS - size % _COLUMNS), value=1.0)
    sums = torch.bmm(scores.sub_(top).exp_(), with_ones)
    total = sums[..., size : size + 1]
    return sums[..., :size] / total, total.log().add_(top)


def _softmax_weights(scores: list[torch.Tensor], grid: _Grid) -> torch.Tensor:
    """Return exp(score - maximum) rounded to the grid, ``(groups, limbs * rows, slots)``, float64.

    exp is used because on CPUs the last few numbers of a tensor get other bits from exp2, as from sigmoid. It is slow
    if the result underflows, so scores are clamped first, far below the grid.
    """
    joined = scores[0] if len(scores) == 1 else torch.cat(scores, -1)
    p = joined.sub_(joined.amax(-1, keepdim=True)).clamp_(min=_LOWEST_EXPONENT).exp_()
    p = _round_to(p, grid.weights[-1])
    if len(grid.weights) == 1:
        return p.double()
    num_rows, coarse = p.shape[1], _round_to(p, grid.weights[0])
    limbs = torch.empty(len(p), 2 * num_rows, p.shape[2], dtype=torch.float64, device=p.device)
    limbs[:, :num_rows] = coarse
    limbs[:, num_rows:] = p.sub_(coarse)
    return limbs


def _exact_sum(limbs: torch.Tensor, values: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Return the sum of p V over slots for each limb of p, ``(groups, limbs * rows, head size)``, float64."""
    return torch.bmm(limbs, _round_to(values.float(), grid.values).double())


def _round_to(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Round float32 ``x`` to multiples of 2^-exponent, by adding a large number and subtracting it again.

    If ``x`` is larger than that number, it is rounded to another power of two, by less than its own last place.
    """
    return torch.add(x, _LARGE[exponent]).sub_(_LARGE[exponent])
