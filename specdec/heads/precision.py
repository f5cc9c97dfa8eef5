"""The precision of a head."""

from typing import Literal

import torch

from specdec.machine.facts import computes_in_bfloat16

Precision = Literal["auto", "float32", "bfloat16"]
AUTO = "auto: bfloat16 if the target or the processor computes in it"  # for the options' descriptions


def dtype_of(precision: Precision, embeddings: torch.Tensor) -> torch.dtype:
    """Return a head's dtype; ``embeddings`` are the target's."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    # A pass takes as long as reading the head's weights, and drafts need no exact numbers.
    return (
        torch.bfloat16
        if computes_in_bfloat16(embeddings.device) or embeddings.dtype == torch.bfloat16
        else torch.float32
    )
