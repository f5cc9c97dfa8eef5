"""Mask compilers and their attention kernels: which keys each node may see."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.masks.base import AttentionKind as AttentionKind
    from specdec.masks.base import MaskCompiler as MaskCompiler
    from specdec.masks.base import register_attention as register_attention
    from specdec.masks.dense import DenseCompiler as DenseCompiler
    from specdec.masks.exact.compiler import ExactCompiler as ExactCompiler
    from specdec.masks.slot_table.compiler import SlotTableCompiler as SlotTableCompiler
    from specdec.masks.visibility import ancestors as ancestors
    from specdec.masks.visibility import first_seen as first_seen
    from specdec.masks.visibility import needs_no_mask as needs_no_mask
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
