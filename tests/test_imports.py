"""The division of labour: who may import whom, read off the import statements."""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import specdec

PACKAGE = Path(specdec.__file__).parent
STAGES = ("strategies", "masks", "backends", "verifiers")
LOOP = (
    "specdec.target",
    *(f"specdec.decoding.{name}" for name in ("scheduler", "step", "turn", "drafting", "signals", "prefix_cache")),
)


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_by(path: Path) -> set[str]:
    """The modules that a file's import statements name, at any depth; ``from a import b`` may mean a.b as well."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return set[str]().union(*(named_by(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)))


def named_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, "a relative import, which the tests here don't resolve"
    return {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}


@cache
def imported_with(path: Path) -> set[str]:
    """Of those, the ones that are imported when the file itself is: not in a function, not for type checkers alone."""
    names, queue = set[str](), list[ast.AST](ast.parse(path.read_text(encoding="utf-8")).body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            queue += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= named_by(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)
    return names


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


class Imports(Mapping[str, set[str]]):
    """The imports of each module, whose file is read when they are asked for: not while tests are collected."""

    def __init__(self, read: Callable[[Path], set[str]]) -> None:
        self._read = read

    def __getitem__(self, module: str) -> set[str]:
        return self._read(FILES[module])

    def __iter__(self) -> Iterator[str]:
        return iter(FILES)

    def __len__(self) -> int:
        return len(FILES)


IMPORTS, IMPORTED_WITH = Imports(imported_by), Imports(imported_with)


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


def imported_at_once(module: str) -> set[str]:
    """Every module that is imported before the first function of this one is called, packages around them included."""
    found, queue = set[str](), [module]
    while queue:
        parts = queue.pop().split(".")
        packages = {".".join(parts[: end + 1]) for end in range(len(parts))} - found
        found |= packages
        queue += set[str]().union(*(IMPORTED_WITH.get(package, set()) for package in packages))
    return found


def test_the_statements_are_read() -> None:
    assert {"specdec.tree", "specdec.tree.ROOT"} <= IMPORTS["specdec.decoding.step"]
    assert "specdec.demo" in IMPORTS["specdec.apps.cli.demo"]  # within a function
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


@pytest.mark.parametrize("module", LOOP)
def test_the_loop_imports_no_plug_in_manager_not_even_through_others(module: str) -> None:
    managers = (
        "pluggy",
        "specdec.plugins.registry",
        "specdec.plugins.hookspecs",
        "importlib.metadata",
    )
    reached = closure(module)
    assert {"specdec.tree", "specdec.layout", "specdec.backends.base"} <= reached
    assert ("specdec.strategies.base" in reached) == (module != "specdec.target")
    assert sorted(name for name in reached if any(is_inside(name, manager) for manager in managers)) == []


@pytest.mark.parametrize("module", LOOP)
def test_the_loop_knows_contracts_and_no_implementation(module: str) -> None:
    contracts = ".base", ".feedback", ".request", ".retained", ".signals", "backends.output"
    stages = {other for other in IMPORTS if other.count(".") == 2 and other.split(".")[1] in STAGES}
    implementations = [other for other in stages if not other.endswith(contracts)]
    assert len(implementations) >= 8
    assert sorted(name for name in IMPORTS[module] for other in implementations if is_inside(name, other)) == []


def test_nothing_imports_the_command_line_but_main() -> None:
    outside = {module for module in IMPORTS if not is_inside(module, "specdec.apps.cli")}
    assert {m for m in outside if any(is_inside(name, "specdec.apps.cli") for name in IMPORTS[m])} == {
        "specdec.__main__"
    }


def test_contracts_and_core_import_no_terminal_library() -> None:
    users = {
        module for module, names in IMPORTS.items() if {name.partition(".")[0] for name in names} & {"typer", "rich"}
    }
    assert len(users) >= 3
    assert all(is_inside(module, "specdec.apps.cli") for module in users)


@pytest.mark.parametrize(
    "module", ["specdec", "specdec.demo", *(m for m in IMPORTS if is_inside(m, "specdec.apps.cli"))]
)
def test_the_package_the_command_line_and_the_built_in_model_import_nothing_that_takes_long(module: str) -> None:
    slow = {"torch", "transformers", "numpy", "pydantic", "pluggy", "matplotlib", "scipy", "jinja2"}
    assert imported_at_once(module) & slow == set()


def test_transformers_comes_in_with_backends_probes_and_attention_functions_alone() -> None:
    users = {
        module for module, names in IMPORTED_WITH.items() if any(is_inside(name, "transformers") for name in names)
    }
    places = (
        "specdec.backends",
        "specdec.apps.in_transformers",
        "specdec.masks.exact.kernel",
        "specdec.models.architecture",
        "specdec.models.attention_switch",
        "specdec.models.cross_states",
        "specdec.models.decoder_view",
        "specdec.runtime.probes",
        "specdec.heads.rotary",
        "specdec.strategies.draft_model.early_exit",
        "specdec.heads.training",
    )
    assert users
    assert {module for module in users if not any(is_inside(module, place) for place in places)} == set()


def test_no_contract_and_no_public_name_needs_transformers_before_there_is_a_model() -> None:
    modules = [module for module in IMPORTS if module.count(".") == 1 or module.endswith((".base", ".toy"))]
    modules += ["specdec.apps.auditing", "specdec.apps.comparison"]
    modules = [module for module in modules if module not in {"specdec.in_transformers", "specdec.training"}]
    assert {"specdec.generator", "specdec.auditing", "specdec.plugins"} <= set(modules)
    assert [module for module in modules if "transformers" in imported_at_once(module)] == []


def test_no_public_class_has_the_name_of_another() -> None:
    classes = [
        node.name
        for path in FILES.values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(classes) > 300
    assert {name for name in classes if classes.count(name) > 1} == set()
