"""A measurement's report: printed, and written as Markdown and JSON."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import recorded


def command(name: str) -> str:
    """The command line of a measurement, without folders."""
    return " ".join([f"python -m benchmarks {name}", *map(without_folders, sys.argv[1:])])


def without_folders(argument: str) -> str:
    """An argument, or a contender's name, with the last part of each path alone."""
    return re.sub(r"(^|=)[^=\s]*/", r"\1…/", argument)


def without_paths(text: str) -> str:
    """A text, such as an engine's traceback, with the last part of each absolute path alone."""
    return re.sub(r"(?<![\w.…/])/[^\s\",]*/", "…/", text)


def write(out: Path, report: str, data: dict[str, Any]) -> None:
    """Print a report, and write it as ``OUT.md`` and its data as ``OUT.json``."""
    print(report)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(out.name + ".md").write_text(report, encoding="utf-8")
    out.with_name(out.name + ".json").write_text(json.dumps({"recorded": recorded(), **data}), encoding="utf-8")
