"""The parts of a generator: its binding to a model, the strategies, and open batches."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.runtime.lease import WeightsLease as WeightsLease
    from specdec.runtime.lease import kernel_of as kernel_of
    from specdec.runtime.open_batch import OpenBatch as OpenBatch
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
