"""Print the tests that a change needs, as arguments for pytest; commands that test the rest go to standard error.

    python -m tests.selection [--base REV]

The change is what differs from the merge base with REV (default: main), uncommitted and new files included. A change of
an application needs its own tests, and every test file that uses it or an application built on it. A change of anything
else in ``specdec`` needs all tests but those of applications and benchmarks. A file without a rule needs everything.
Names are searched for in the code, so that a module's name in a string counts as an import.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.test_imports import imported_by

ROOT = Path(__file__).parent.parent
TESTS = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
PLUGINS = {f"plugins/specdec-{name}" for name in ("datastore", "distributed", "example", "flash", "openvino", "vllm")}
EVERYTHING = {"tests", "tests/site", *PLUGINS}
# The targets that install what some tests need and run them; the names of the others are for pytest.
MADE = {"tests/site": "make docs", "plugins/specdec-openvino": "make openvino"}
# Packages that the rest of specdec doesn't import.
APPS = {f"apps.{path.name}" for path in (ROOT / "specdec" / "apps").iterdir() if (path / "__init__.py").exists()}
APPS |= {"heads.training"}
# Other files and folders that tests read by name.
OTHERS = "benchmarks", "docs", "mkdocs.yml", "Makefile", "README.md", "CHANGELOG.md", "constraints.txt", ".ci"
# Tests of all files, which take seconds.
STRUCTURE = {f"tests/test_{name}.py" for name in ("architecture", "exported_names", "imports", "layering", "mutations")}
STRUCTURE |= {"tests/test_selection.py"}


def group_of(test: str) -> str:
    """Return the application that a test file is about, "benchmarks", or "core" for any other."""
    return app_of(test) or ("benchmarks" if test.startswith("tests/benchmarks/") else "core")


def app_of(path: str) -> str:
    """Return the application that a file of ``specdec`` or ``tests`` belongs to, or ""."""
    app = ".".join(path.split("/")[1:3])
    return app if app in APPS else ""


def folder_of(app: str) -> str:
    """Return an application's folder in ``specdec`` or ``tests``."""
    return app.replace(".", "/")


@cache
def code_of(path: str) -> str:
    """Return the code of a file, or of all Python files of a folder, without comments and docstrings."""
    files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    return "\n".join(map(ast.unparse, (Bare().visit(ast.parse(file.read_text(encoding="utf-8"))) for file in files)))


class Bare(ast.NodeTransformer):
    """Removes docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


@cache
def with_helpers(test: str) -> set[str]:
    """Return a test file and all files of ``tests`` that it imports or that configure it."""
    found, queue = set[str](), [test]
    while queue:
        path = queue.pop()
        if path not in found and (ROOT / path).is_file():
            found.add(path)
            names = {name.replace(".", "/") + ".py" for name in imported_by(ROOT / path) if name.startswith("tests.")}
            queue += [*names, *(f"{parent.as_posix()}/conftest.py" for parent in Path(path).parents)]
    return found


def tests_of(plugin: str) -> list[str]:
    """Return the test files of a plug-in."""
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / plugin / "tests").rglob("test_*.py"))]


def uses(plugin: str, apps: Iterable[str]) -> bool:
    """Return True if a plug-in or its tests use one of some applications."""
    return any(app != "benchmarks" and mentions(plugin, app) for app in apps)


@cache
def pattern_of(unit: str) -> re.Pattern[str]:
    """Return what the code of a unit's users contains: its name, for an application also what specdec exports of it."""
    if unit not in APPS:
        return re.compile(rf"(?<![\w.]){re.escape(unit)}(?!\w)".replace(r"\-", "[-_]"))
    exported = re.findall(rf"from specdec\.{unit}\b.* import (.*)", code_of("specdec/__init__.py"))
    names = [rf"specdec\.{unit}", *(name.partition(" as ")[0] for names in exported for name in names.split(", "))]
    names += ["'-m', 'specdec'"] if unit == "apps.cli" else []
    return re.compile("|".join(rf"(?<!\w){name}(?!\w)" for name in names))


@cache
def mentions(path: str, unit: str) -> bool:
    """Return True if a unit is named in the code of a file or folder."""
    return bool(pattern_of(unit).search(code_of(path)))


def users_of(units: Iterable[str]) -> set[str]:
    """Return the test files of some units, and those whose code, or that of their helpers, names one."""
    users = {test for unit in units for test in TESTS if any(mentions(path, unit) for path in with_helpers(test))}
    return users | {test for test in TESTS if group_of(test) in units}


def built_on(app: str) -> set[str]:
    """Return an application with all applications and benchmarks that use it, directly or through others."""
    folders = {name: f"specdec/{folder_of(name)}" for name in APPS} | {"benchmarks": "benchmarks"}
    found, queue = set[str](), {app}
    while queue:
        found |= queue
        apps = queue - {"benchmarks"}  # which nothing imports
        queue = {user for app in apps for user in folders if mentions(folders[user], app)} - found
    return found


def needed_by(changed: str) -> set[str]:
    """Return the test files and folders that the change of one file needs."""
    found = set[str]()
    match changed.split("/"):
        case ["tests", *_, name]:
            found = {test for test in TESTS if changed in with_helpers(test)} or users_of([name])
            found |= {plugin for plugin in PLUGINS if any(changed in with_helpers(test) for test in tests_of(plugin))}
        case ["plugins", plugin, _, *_]:
            found = users_of([plugin]) | {f"plugins/{plugin}"}
        case ["specdec", "__main__.py"]:
            found = users_of(["apps.cli"])
        case ["specdec", *_] if app := app_of(changed):
            found = users_of(built_on(app)) | {plugin for plugin in PLUGINS if uses(plugin, built_on(app))}
        case ["specdec", _, *_]:
            found = {test for test in TESTS if group_of(test) == "core"} | PLUGINS
        case [other, *_] if other in OTHERS:
            found = users_of(["docs" if other == "mkdocs.yml" else other])
    return found or EVERYTHING


def selected(changed: Iterable[str]) -> list[str]:
    """Return pytest's arguments for a change of these files: folders of which it needs all tests, else files."""
    found = STRUCTURE.union(*map(needed_by, changed))
    if found >= EVERYTHING:
        return sorted(EVERYTHING)
    folders = {f"tests/{folder_of(app)}" for app in APPS} | {"/".join(each.split("/")[:2]) for each in TESTS}
    for folder in sorted(folders - {*TESTS}):
        inside = {test for test in TESTS if test.startswith(f"{folder}/")}
        found = found - inside | {folder} if inside and inside <= found else found
    return sorted(found)


def changed_since(base: str) -> list[str]:
    """Return the files that differ from the merge base with a revision, removed and new ones included."""
    commands = f"diff --name-only --no-renames --merge-base {base}", "ls-files --others --exclude-standard"
    outputs = [subprocess.check_output(["git", *command.split()], cwd=ROOT, text=True) for command in commands]
    return "".join(outputs).splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", metavar="REV")
    for argument in selected(changed_since(parser.parse_args().base)):
        commands = [command for path, command in MADE.items() if argument.startswith(path)]
        print(
            *([f"{argument}: {commands[0]}"] if commands else [argument]), file=sys.stderr if commands else sys.stdout
        )


if __name__ == "__main__":
    main()
