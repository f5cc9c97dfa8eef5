"""What was found out about a model by trying it: kept with the model object itself, so that it is tried once."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch

Finding = TypeVar("Finding")
_WHERE = "_specdec_findings"


def remembered(model: object, question: Hashable, find: Callable[[], Finding]) -> Finding:
    """The answer to a question about a model on its device, in its dtype and with torch's present number of threads."""
    notes: dict[Hashable, Finding] = vars(model).setdefault(_WHERE, {})
    modules, config = getattr(model, "modules", tuple), getattr(model, "config", None)
    asked = (
        question,
        str(getattr(model, "device", "")),
        str(getattr(model, "dtype", "")),
        # What changes what a model computes with: adapters and the like, and other implementations.
        sum(1 for _ in modules()),
        str(getattr(config, "_attn_implementation", "")),
        str(getattr(config, "_experts_implementation", "")),
        torch.get_num_threads(),
    )
    if asked not in notes:
        notes[asked] = find()
    return notes[asked]
