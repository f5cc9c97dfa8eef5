"""The mask ``split`` as a plug-in."""

from collections.abc import Mapping

from specdec import hookimpl


@hookimpl
def specdec_masks() -> Mapping[str, str]:
    return {"split": "specdec_flash.compiler:SplitCompiler"}
