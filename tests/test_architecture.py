"""The architecture page names functions and files that exist, and each package of ``specdec/``."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def names_in(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{each.name}" for each in inner if isinstance(each, ast.FunctionDef)}
    return found


def test_every_path_exists() -> None:
    paths = re.findall(r"`(specdec/[\w/]+(?:\.py|/))`", PAGE)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_function_is_in_the_file_that_is_named_with_it() -> None:
    named = re.findall(r"`([A-Za-z_.]+)` in\s+`(specdec/[\w/]+\.py)`", PAGE)
    assert len(named) > 12
    assert [(name, path) for name, path in named if name not in names_in(ROOT / path)] == []


def test_every_package_has_a_line() -> None:
    packages = {path.parent.name for path in (ROOT / "specdec").glob("*/__init__.py")}
    table = PAGE.partition("## Packages")[2]
    assert {package for package in packages if f"`{package}/`" not in table} == set()
