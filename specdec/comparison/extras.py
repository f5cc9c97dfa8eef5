"""Libraries that only comparisons and pictures need, of the extra ``compare``."""

from importlib import import_module
from typing import Any

from specdec.errors import RequestError, plural


def needs(module: str) -> Any:
    """Import a module of the extra.

    Raises:
        RequestError: the module isn't installed; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RequestError(f"this needs {module.partition('.')[0]}: pip install 'specdec[compare]'") from error


def page_environment(package: str) -> Any:
    """A jinja2 environment for the HTML templates in a package: it escapes everything, and undefined names raise.

    Raises:
        RequestError: jinja2 isn't installed.
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
