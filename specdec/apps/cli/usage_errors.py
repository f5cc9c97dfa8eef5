"""Errors of the argument parser, with the value that was given and the remedy."""

import re
from typing import Any

import typer

from specdec.errors import nearest, shortened

# Options of other tools, too different from specdec's for the parser's own suggestions.
_MEANT = {
    "--strategy": "--proposer",
    "--speculator": "--proposer",
    "--assistant-model": "--proposer draft_model:model=…",
    "--torch-dtype": "--dtype",
    "--device-map": "--device",
    "--engine": "--backend",
    "--max-tokens": "--max-new-tokens",
}
# Names of commands that a newcomer may try.
_MEANT_COMMANDS = {
    "strategies": "plugins",
    "proposers": "plugins",
    "list": "plugins",
    "bench": "compare",
    "benchmark": "compare",
    "complete": "generate",
    "run": "generate",
}
# What a user may write without the option that it needs.
_VALUES = {"model": "model", "proposer": "strategy", "prompt": "prompt"}
_NO_COMMAND = re.compile(r"No such command '([^']*)'\.$")
# By pydantic's kind of fault: what a value must be. The parser's own sentences don't say what was given.
_ACCEPTED = {
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it must be at most {le}",
}


def show(error: Any) -> None:
    """Print an error of the argument parser on standard error: in one line if it refuses an option's value."""
    if fault := _refused_value(error):
        typer.echo(f"error: {fault}", err=True)
        return
    if (option := getattr(error, "option_name", "")) in _MEANT:
        error.possibilities = [_MEANT[option]]
    error.show()
    if hint := _hint(error):
        typer.echo(hint, err=True)


def _refused_value(error: Any) -> str:
    """Return the option, the value that it was given and what it must be; "" if no value was refused."""
    from pydantic import ValidationError

    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is None or not isinstance(cause, ValidationError):
        return ""
    fault = cause.errors()[0]
    accepted = _ACCEPTED.get(fault["type"], "").format(**fault.get("ctx", {})) or fault["msg"]
    return f"{max(parameter.opts, key=len)} {shortened(str(fault['input']))!r}: {accepted}"


def _hint(error: Exception) -> str:
    """Return a remedy that the argument parser doesn't add to a usage error, or ""."""
    context: Any = getattr(error, "ctx", None)
    command: Any = getattr(context, "command", None)
    parameters, own = getattr(command, "params", ()), getattr(command, "commands", {})
    names = command.list_commands(context) if own else ()
    commands = [name for name in names if name not in own or not own[name].hidden]
    if "unexpected extra argument" in str(error):
        kinds = {each.name: each.param_type_name for each in parameters}
        if kinds.get("prompt") == "argument":
            return "Put the prompt in quotes: a prompt is one argument."
        named = [f"a {what} with --{name}" for name, what in _VALUES.items() if name in kinds]
        return f"Give {', '.join(named)}." if named and "argument" not in kinds.values() else ""
    if unknown := _NO_COMMAND.search(str(error)):  # without a suggestion by the parser
        name = unknown[1]
        meant = _MEANT_COMMANDS.get(name, "")
        meant = meant if meant in commands else next(iter(nearest(name, commands)), "")
        return f"Did you mean '{meant}'?" if meant else f"Commands: {', '.join(commands)}"
    return ""
