"""Libraries that only comparisons need; they come with an extra of their own."""

from importlib import import_module
from typing import Any

from specdec.errors import RequestError


def needs(module: str) -> Any:
    """A module of the extra.

    Raises:
        RequestError: where it isn't installed, with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RequestError(f"this needs {module.partition('.')[0]}: pip install 'specdec[compare]'") from error
