"""Facts about the machine, the user's cache folder, CUDA graphs and huge pages."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.machine.cuda_graphs import Graphs as Graphs
    from specdec.machine.forks import TORCH_IN_ONE_THREAD as TORCH_IN_ONE_THREAD
    from specdec.machine.forks import refuse_fork as refuse_fork
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
