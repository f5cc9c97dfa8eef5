"""Regions of attention to an encoder's states: each node of a row sees all of them, from the first to the last."""

import torch

from specdec.masks.exact.regions import Region, closed_region


def encoder_regions(
    module: torch.nn.Module, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> tuple[Region, ...] | None:
    """Return the regions of a call, one for each row; None for a decoder's attention to its own text.

    Args:
        mask: None, or an additive one with each row's ``num_states``.
        query, key: (rows, heads or groups, width or states, size).
    """
    if getattr(module, "is_causal", True) or (mask is not None and not hasattr(mask, "num_states")):
        return None
    width = query.shape[2]
    regions = []
    for row, num_states in enumerate(getattr(mask, "num_states", [key.shape[2]] * len(query))):
        closed = closed_region(0, num_states - 1)
        seen = torch.zeros(width, num_states - closed.stop, device=query.device)
        regions.append(Region(row, slice(0, width), closed, (slice(closed.stop, num_states),), seen))
    return tuple(regions)
