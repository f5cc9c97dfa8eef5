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
        raise RequestError(f"{what} needs {package}: {command_for(extra)}") from error


def command_for(extra: str) -> str:
    """Return the command that installs an extra, and where it is run, as the end of a sentence."""
    return f"pip install -e '.[{extra}]', in a copy of specdec's repository"
