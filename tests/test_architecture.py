"""The pages for contributors name functions and files that exist, and each package of ``specdec/`` in its order."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_layering import FLOOR_OF

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("architecture", "contributing")}
PACKAGES = PAGES["architecture"].partition("## Packages")[2]


def names_in(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{each.name}" for each in inner if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    paths = re.findall(r"`((?:specdec|tests|docs|benchmarks)/[\w./-]*)`", PAGES[page])
    assert len(paths) > 15
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("page", "least"), [("architecture", 12), ("contributing", 3)])
def test_every_function_is_in_the_file_that_is_named_with_it(page: str, least: int) -> None:
    named = re.findall(r"`([A-Za-z_.]+)` in\s+`(specdec/[\w/]+\.py)`", PAGES[page])
    assert len(named) > least
    assert [(name, path) for name, path in named if name not in names_in(ROOT / path)] == []


def test_every_package_has_a_line() -> None:
    packages = {path.parent.name for path in (ROOT / "specdec").glob("*/__init__.py")}
    rooms = {room.replace(".", "/") for room in FLOOR_OF if not (ROOT / "specdec" / f"{room}.py").exists()}
    assert packages - {"apps"} <= rooms
    assert {room for room in rooms if f"| `{room}/` |" not in PACKAGES} == set()


def test_the_packages_are_in_the_order_in_which_they_import() -> None:
    listed = re.findall(r"^\| `([\w/]+)/` \|", PACKAGES, re.MULTILINE)
    floors = [FLOOR_OF[package.replace("/", ".")] for package in listed]
    assert len(listed) > 20
    assert floors == sorted(floors)
