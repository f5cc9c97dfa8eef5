"""The precision of a head."""

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]


def dtype_of(precision: Precision, embeddings: torch.Tensor) -> torch.dtype:
    """Return a head's dtype; ``embeddings`` are the target's."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    # A pass takes as long as reading the head's weights, and drafts need no exact numbers.
    is_fast = embeddings.is_cpu and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if is_fast or embeddings.dtype == torch.bfloat16 else torch.float32
