"""Stage 3: one forward pass over all nodes, and its cache of keys and values."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.backends.base import NO_OPTIONS as NO_OPTIONS
    from specdec.backends.base import Backend as Backend
    from specdec.backends.base import BackendOptions as BackendOptions
    from specdec.backends.base import Examination as Examination
    from specdec.backends.base import KVBlock as KVBlock
    from specdec.backends.fused.backend import FusedBackend as FusedBackend
    from specdec.backends.hf import HFBackend as HFBackend
    from specdec.backends.output import Output as Output
    from specdec.backends.output import OutputRow as OutputRow
    from specdec.backends.process_group import GroupBackend as GroupBackend
    from specdec.backends.recorded.backend import RecordedBackend as RecordedBackend
    from specdec.backends.static import StaticBackend as StaticBackend
    from specdec.backends.toy import TokenDistribution as TokenDistribution
    from specdec.backends.toy import ToyBackend as ToyBackend
    from specdec.backends.toy import ToyModel as ToyModel
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
