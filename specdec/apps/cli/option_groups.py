"""Groups of options, each passed as one argument to the command's function."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


class OptionGroup:
    """Base of frozen dataclasses whose fields are command-line options, ``Annotated`` as for typer."""

    __slots__ = ()


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: each parameter that is an ``OptionGroup`` becomes an option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, OptionGroup)
    }

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        options = get_type_hints(groups[name], include_extras=True)
        for each in fields(groups[name]):
            assert each.default is not MISSING, "an option of a group has a default"
            own = inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=options[each.name]
            )
            parameters.append(own)
    vars(with_options)["__signature__"] = inspect.Signature(parameters)
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
