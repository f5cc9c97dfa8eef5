"""Libraries that only comparisons need; they come with an extra of their own."""

from importlib import import_module
from typing import Any

from specdec.errors import RequestError, plural


def needs(module: str) -> Any:
    """A module of the extra.

    Raises:
        RequestError: where it isn't installed, with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RequestError(f"this needs {module.partition('.')[0]}: pip install 'specdec[compare]'") from error


def page_environment(package: str) -> Any:
    """jinja2 for the HTML templates that lie in a package: everything escaped, nothing undefined.

    Raises:
        RequestError: where jinja2 isn't installed.
    """
    jinja = needs("jinja2")
    environment = jinja.Environment(
        loader=jinja.PackageLoader(package, "."),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plural"] = plural
    return environment
