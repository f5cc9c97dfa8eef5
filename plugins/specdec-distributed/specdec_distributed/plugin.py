"""The ``distributed`` backend as a plug-in."""

from collections.abc import Mapping

from specdec import hookimpl
from specdec.backends import Backend


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    """Import the backend when the registry needs it, since transformers' model code takes seconds to import."""
    from specdec_distributed.backend import DistributedBackend

    return {"distributed": DistributedBackend}
