"""The ``distributed`` backend as a plug-in, registered by specdec's own entry point."""

from collections.abc import Mapping

from specdec.backends.base import Backend
from specdec.plugins.hookspecs import hookimpl


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    """Import the backend when the registry needs it, since transformers' model code takes seconds to import."""
    from specdec.distributed.backend import DistributedBackend

    return {"distributed": DistributedBackend}
