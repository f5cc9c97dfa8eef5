"""Decoding by several processes: each has a shard of the model's tensors, or a share of each draft tree."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec_distributed.process_group import group as group
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
