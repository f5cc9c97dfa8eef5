"""OpenVINO as a backend of specdec: a transformers model is converted once, and its graph runs all passes."""

from collections.abc import Mapping

from specdec import hookimpl
from specdec.backends import Backend
from specdec.errors import PluginError


@hookimpl
def specdec_backends() -> Mapping[str, type[Backend]]:
    try:
        from specdec_openvino.backend import OpenVINOBackend
    except ImportError as error:
        raise PluginError(f"it needs OpenVINO of 2026.4 or later: pip install --upgrade openvino ({error})") from error
    return {"openvino": OpenVINOBackend}
