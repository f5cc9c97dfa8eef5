"""Tensors that are sharded over processes."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded_tensor(tensor: object) -> TypeGuard["DTensor"]:
    """Return True for a ``DTensor``, without importing its module, which takes half a second.

    Nobody can hold a ``DTensor`` before that module is imported.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
