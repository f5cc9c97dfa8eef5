"""Commands that plug-ins add to the command line: the entry points of the group ``specdec.commands``.

An entry point's name is the command's, and its object a function for typer. Its module is imported when the command is
run or listed, so it imports torch within the function alone.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import typer
from typer.core import TyperGroup

from specdec.apps.cli.options import before_anything_runs
from specdec.apps.cli.version_option import with_version
from specdec.errors import PluginError, in_one_line

ANY_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}


class CommandGroup(TyperGroup):
    """specdec's own commands, and those of installed plug-ins, whose names may not be specdec's."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *sorted({each.name for each in _entries()} - {*own})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if own := super().get_command(ctx, cmd_name):
            return own
        if found := next((each for each in _entries() if each.name == cmd_name), None):
            return _command_of(found)
        from specdec.plugins.names import not_installed

        if remedy := not_installed("commands", cmd_name):
            with before_anything_runs():
                raise PluginError(f"unknown command {cmd_name!r}: {remedy}")
        return None


def _entries() -> list[EntryPoint]:
    from specdec.plugins.names import command_entries

    return list(command_entries())


def _command_of(entry: EntryPoint) -> Any:
    """Return a plug-in's command; if it can't be imported, one that says so."""
    try:
        return _made(entry.name, with_version(entry.load()))
    except Exception as error:  # a third party's code
        return _made(entry.name, _refusing(entry, error), context_settings=ANY_OPTIONS)


def _made(name: str, function: Callable[..., None], **settings: Any) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, **settings)(function)
    return typer.main.get_command(alone)


def _refusing(entry: EntryPoint, error: Exception) -> Callable[[], None]:
    distribution = entry.value if entry.dist is None else entry.dist.name
    fault = f"{distribution} is installed but broken: {in_one_line(error)}"

    def refuse() -> None:
        with before_anything_runs():
            raise PluginError(fault)

    refuse.__doc__ = fault
    return refuse
