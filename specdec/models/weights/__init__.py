"""Weight matrices packed for products of a few rows; all other code sees ordinary layers."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.models.weights.base import Kernel as Kernel
    from specdec.models.weights.layers import is_sharded as is_sharded
    from specdec.models.weights.packing import packed_weights as packed_weights
    from specdec.models.weights.packing import unpack as unpack
    from specdec.models.weights.tensor import PackedWeight as PackedWeight
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
