"""The option ``--version``, which every command has."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from specdec import __version__


def _show(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"specdec {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_show, help="print specdec's version and exit")
]


def with_version(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the additional option ``--version``."""

    @functools.wraps(command)
    def run(*, version: bool = False, **arguments: Any) -> None:
        command(**arguments)

    signature = inspect.signature(command)
    option = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Version)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    run.__signature__ = signature.replace(parameters=[*parameters, option])  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {**get_type_hints(command, include_extras=True), "version": Version}
    return run
