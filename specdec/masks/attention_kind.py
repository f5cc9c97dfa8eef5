"""A layer's attention besides its states and mask, as transformers passes it to an attention function."""

from typing import NamedTuple, Self

import torch


class AttentionKind(NamedTuple):
    """The scale of the scores, their bound, and attention sinks, (heads,); None for no bound and no sinks."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @classmethod
    def of(cls, query: torch.Tensor, scaling: float | None, softcap: float | None, sinks: torch.Tensor | None) -> Self:
        """Return the kind of a call; without ``scaling`` the scale is that of the head size of ``query``."""
        return cls(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
