"""Optional packages, which specdec's extras install."""

from importlib import import_module
from typing import Any

from specdec.errors import RequestError


def needs(module: str, extra: str, what: str) -> Any:
    """Import a module of an extra.

    Args:
        what: what needs it, the subject of the error's sentence.

    Raises:
        RequestError: the module isn't installed; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise RequestError(f"{what} needs {package}: pip install 'specdec[{extra}]'") from error
