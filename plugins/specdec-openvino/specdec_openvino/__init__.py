"""OpenVINO as a backend of specdec: a transformers model is converted once, and its graph runs below the loop."""

from collections.abc import Mapping

from specdec import hookimpl
from specdec.backends.base import Backend


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    from specdec_openvino.backend import OpenVINOBackend

    return {"openvino": OpenVINOBackend}
