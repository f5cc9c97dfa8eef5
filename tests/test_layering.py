"""The floors of specdec and its plug-ins: no import leads upward or in a circle; files and roots are small."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_imports import FILES, IMPORTS, PACKAGE, imported_by, module_name, named_by

PLUGINS = Path(__file__).parents[1] / "plugins"
# From the ground up, a line per floor. A room may import those on the floors below, and none on its own. A package may
# have rooms of its own.
FLOORS = """
errors lazy_exports
configuration machine tree
constraints layout models.weights record
costs models numerics settings
demo inputs masks sampling
backends verifiers
target
runtime.probes strategies
decoding plugins
heads requests
heads.training runtime
generator
apps.chat apps.comparison apps.in_transformers apps.serving testing training
in_transformers apps.auditing apps.loadtest apps.pictures apps.side_by_side
apps.cli auditing
__main__
"""
PLUGIN_FLOORS = {
    "specdec_datastore": """
    tokenizer_fingerprint
    index
    datastore
    command plugin
    """,
    "specdec_distributed": """
    ranks shares
    agreement rank_worker
    loading shared_output
    process_group
    backend
    plugin
    """,
    "specdec_flash": """
    parts
    kernel
    compiler
    plugin
    """,
    "specdec_openvino": """
    conversion
    options
    engine
    heads model sources
    loading preference
    backend
    """,
}
PLUGIN_PACKAGES = [PLUGINS / name.replace("_", "-") / name for name in PLUGIN_FLOORS]
ALL_FILES = FILES | {
    module_name(path, package): path for package in PLUGIN_PACKAGES for path in sorted(package.rglob("*.py"))
}
MOST_AT_THE_ROOT = 16
MOST_PACKAGES = 18
MOST_LINES = 300
LONGER = {"specdec.tree"}  # one class, whose checks read its private index


def floors_of(text: str) -> dict[str, int]:
    return {room: floor for floor, rooms in enumerate(text.splitlines()) for room in rooms.split()}


FLOOR_OF = floors_of(FLOORS)


def room_of(module: str) -> str:
    _, *inner = module.split(".")
    return ".".join(inner[:2]) if ".".join(inner[:2]) in FLOOR_OF else "".join(inner[:1])


def targets(module: str, names: set[str]) -> set[str]:
    """The other modules among the names that a module imports, without the packages' roots."""
    return names & ALL_FILES.keys() - {module, PACKAGE.name, *PLUGIN_FLOORS}


def package_of(module: str) -> str:
    """Return the package of a module's room: imported before it, and so without exports for it."""
    return f"{module.partition('.')[0]}.{room_of(module)}".rstrip(".")


def at_the_top(block: list[ast.stmt]) -> Iterator[str]:
    """The names that import statements outside of functions and classes name, ``TYPE_CHECKING`` blocks included."""
    for node in block:
        if isinstance(node, ast.If):
            yield from at_the_top(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from named_by(node)


@pytest.mark.parametrize(
    ("package", "floor_of", "least"),
    [("specdec", FLOOR_OF, 1000), *((name, floors_of(floors), 2) for name, floors in PLUGIN_FLOORS.items())],
)
def test_no_import_leads_to_a_room_above_or_on_the_same_floor(
    package: str, floor_of: dict[str, int], least: int
) -> None:
    inside = {module: path for module, path in ALL_FILES.items() if module.startswith(f"{package}.")}
    imports = {module: IMPORTS[module] if module in IMPORTS else imported_by(path) for module, path in inside.items()}
    arrows = {(module, name) for module, names in imports.items() for name in targets(module, names) & inside.keys()}
    assert {room_of(module) for module in inside} - {"apps"} == floor_of.keys()
    assert len(arrows) > least
    assert {
        (module, name)
        for module, name in arrows
        if room_of(module) != room_of(name) and floor_of[room_of(module)] <= floor_of[room_of(name)]
    } == set()


def test_no_imports_lead_in_a_circle() -> None:
    bodies = {module: ast.parse(path.read_text(encoding="utf-8")).body for module, path in ALL_FILES.items()}
    graph = {module: targets(module, set(at_the_top(body))) - {package_of(module)} for module, body in bodies.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"circle: {' ← '.join(error.args[1])}") from None


def test_no_file_imports_what_its_own_package_exports() -> None:
    names = {(module, name) for module, names in IMPORTS.items() for name in names - FILES.keys() if "." in name}
    assert ("specdec.testing.checks", "specdec.strategies.Proposer") in names  # of another package
    assert {
        (module, name) for module, name in names if name.rpartition(".")[0] == package_of(module) != module
    } == set()


@pytest.mark.parametrize("package", [PACKAGE, *PLUGIN_PACKAGES])
def test_the_root_has_few_modules(package: Path) -> None:
    assert len(list(package.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_the_root_has_few_packages() -> None:
    assert len(list(PACKAGE.glob("*/__init__.py"))) <= MOST_PACKAGES


def test_files_are_short() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in ALL_FILES.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES}.keys() == LONGER
