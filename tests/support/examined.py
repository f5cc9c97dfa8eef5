"""Backends of transformers models, examined as at load."""

from typing import Any

from specdec.backends.hf import HFBackend
from specdec.runtime.probes.examination import examine
from specdec.target import Target


def examined_target(backend: HFBackend) -> Target:
    """Return a target that holds the examination of a loaded backend."""
    found, examination = examine(backend, backend.model, backend.compiler)
    return Target(found, backend.compiler, examination)


def examined(backend: HFBackend) -> Any:
    """Return the backend after its examination, or the one that takes its place."""
    return examined_target(backend).backend
