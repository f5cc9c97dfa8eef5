"""Who may import whom: the division of labour, read off the import statements."""

import ast
from pathlib import Path

import pytest

import specdec

PACKAGE = Path(specdec.__file__).parent
STAGES = ("strategies", "masks", "backends", "verifiers")


def module_name(path: Path) -> str:
    parts = ("specdec", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path) -> set[str]:
    """The modules that a file's import statements name, at any depth; ``from a import b`` may mean a.b as well."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which the tests here don't resolve"
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


IMPORTS = {module_name(path): imported_by(path) for path in sorted(PACKAGE.rglob("*.py"))}


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def closure(module: str) -> set[str]:
    """Every module that importing this one brings in by statements, the package's own ``__init__`` aside."""
    found, queue = set[str](), [module]
    while queue:
        names = IMPORTS.get(queue.pop(), set()) - found - {"specdec"}
        found |= names
        queue += names
    return found


def test_the_statements_are_read() -> None:
    assert {"contextlib", "specdec.tree", "specdec.tree.DraftTree"} <= IMPORTS["specdec.loop"]
    assert "specdec.demo" in IMPORTS["specdec.cli.decode"]  # within a function
    assert {f"specdec.{stage}.base" for stage in STAGES} <= IMPORTS.keys()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage: str) -> None:
    others = [f"specdec.{other}" for other in STAGES if other != stage]
    crossings = [
        (module, name)
        for module, names in IMPORTS.items()
        if is_inside(module, f"specdec.{stage}")
        for name in sorted(names)
        if any(is_inside(name, other) for other in others)
    ]
    assert crossings == []


def test_the_loop_imports_no_plug_in_manager_not_even_through_others() -> None:
    managers = ("pluggy", "specdec.plugins", "specdec.builtins", "specdec.hookspecs", "importlib.metadata")
    reached = closure("specdec.loop")
    assert "specdec.strategies.base" in reached
    assert sorted(name for name in reached if any(is_inside(name, manager) for manager in managers)) == []


def test_the_loop_knows_contracts_and_no_implementation() -> None:
    implementations = [
        module
        for module in IMPORTS
        if module.count(".") == 2 and module.split(".")[1] in STAGES and ".base" not in module
    ]
    assert len(implementations) >= 8
    assert (
        sorted(name for name in IMPORTS["specdec.loop"] for module in implementations if is_inside(name, module)) == []
    )


def test_nothing_imports_the_command_line_but_main() -> None:
    outside = {module for module in IMPORTS if not is_inside(module, "specdec.cli")}
    assert {m for m in outside if any(is_inside(name, "specdec.cli") for name in IMPORTS[m])} == {"specdec.__main__"}


def test_contracts_and_core_import_no_terminal_library() -> None:
    users = {
        module for module, names in IMPORTS.items() if {name.partition(".")[0] for name in names} & {"typer", "rich"}
    }
    assert len(users) >= 3
    assert all(is_inside(module, "specdec.cli") for module in users)
