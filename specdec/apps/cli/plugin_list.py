"""The list of plug-ins, with their distributions and options."""

import inspect
import json
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specdec.apps.cli.options import AsJson, echo_json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from specdec.plugins.registry import Registry

_INDENT = 4


def plugins(as_json: AsJson = False) -> None:
    """List the installed plug-ins, with their options and defaults."""
    from specdec.plugins.options import fields_of
    from specdec.plugins.registry import load_plugins

    registry = load_plugins()
    console = Console(highlight=False, markup=False)
    for plugin in registry.plugins:
        kind, name, fields = plugin.kind, registry.name_of(plugin), fields_of(plugin.cls)
        if as_json:
            options = {option: _entry(field) for option, field in fields.items()}
            about = {"kind": kind, "name": name, "from": plugin.distribution, "description": _summary(plugin.cls)}
            echo_json(about | {"options": options})
            continue
        console.print(f"{kind.removesuffix('s')} {name} {plugin.distribution}", soft_wrap=True)
        console.print(Padding(Text(_summary(plugin.cls), style="dim"), (0, 0, 0, _INDENT), expand=False))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for option, field in fields.items():
            default = _default(field)
            assigned = f"{option} (required)" if default is None else f"{option}={default}"
            table.add_row(Text(assigned), Text(field.description or ""))
        if fields:
            console.print(Padding(table, (0, 0, 0, _INDENT), expand=False))
    faults = [f"broken: {fault.distribution}: {fault.reason}" for fault in registry.broken]
    for line in (*_longer_names(registry), *faults):
        Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)


def _summary(cls: type) -> str:
    """Return the first paragraph of a class's own docstring."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "").split("\n\n")[0]
    return " ".join(text.split()).replace("``", "`")


def _entry(field: "FieldInfo") -> dict[str, Any]:
    default = _default(field)
    return {"default": default, "description": field.description or "", "required": default is None}


def _default(field: "FieldInfo") -> str | None:
    """Return an option's default as written after ``option=``; None for an option without one."""
    if field.is_required():
        return None
    if field.default_factory is not None:
        return "(computed)"
    value = field.default.value if isinstance(field.default, Enum) else field.default
    return json.dumps(value, default=str) if isinstance(value, list | tuple | dict) else str(value)


def _longer_names(registry: "Registry") -> Iterator[str]:
    """Yield a line for each plug-in that needs its full name, with the distributions that share the short one."""
    for plugin in registry.plugins:
        name = registry.name_of(plugin)
        if name != plugin.name:
            rivals = [other for other in registry.of_kind(plugin.kind) if other.name == plugin.name]
            others = " and ".join(rival.distribution for rival in rivals if rival != plugin)
            yield f"{name}: use the full name, since there is a {plugin.kind[:-1]} {plugin.name} in {others} too"
