"""Tensors that are sharded over processes."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded_tensor(tensor: object) -> TypeGuard["DTensor"]:
    """Return True for a ``DTensor``.

    Its module, which takes half a second to import, isn't imported: if it wasn't imported before, no tensor is one.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
