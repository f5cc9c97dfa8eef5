"""The ``distributed`` backend as a plug-in, registered by an entry point of specdec's own."""

from collections.abc import Mapping

from specdec.backends.base import Backend
from specdec.plugins.hookspecs import hookimpl


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    """Import the backend when the registry needs it: transformers' model code takes seconds."""
    from specdec.distributed.backend import DistributedBackend

    return {"distributed": DistributedBackend}
