"""The floors of the package: no import leads upward or in a circle; files are short, and the root has few."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tests.test_imports import FILES, IMPORTS, PACKAGE, named_by

# From the ground up, a line per floor. A room may import those on the floors below, and none on its own.
FLOORS = """
errors
machine
constraints
tree settings
layout costs record
sampling
weights
models
heads masks
backends verifiers
target
strategies
probes
numerics
decoding
requests
plugins
runtime
generator
demo distributed training
comparison
auditing chat in_transformers loadtest pictures serving side_by_side testing
cli
__main__
"""
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS.splitlines()) for room in rooms.split()}
MOST_AT_THE_ROOT = 12
MOST_LINES = 300
LONGER = {"specdec.tree"}  # one class, whose checks read its private index


def room_of(module: str) -> str:
    return module.split(".")[1]


def targets(module: str, names: set[str]) -> set[str]:
    """The package's other modules among the names that a module imports."""
    return names & FILES.keys() - {module, "specdec"}


def at_the_top(block: list[ast.stmt]) -> Iterator[str]:
    """The names that import statements outside of functions and classes name, ``TYPE_CHECKING`` blocks included."""
    for node in block:
        if isinstance(node, ast.If):
            yield from at_the_top(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from named_by(node)


def test_no_import_leads_to_a_room_above_or_on_the_same_floor() -> None:
    arrows = {(module, name) for module, names in IMPORTS.items() for name in targets(module, names)}
    assert {room_of(module) for module in FILES if module != "specdec"} == FLOOR_OF.keys()
    assert len(arrows) > 1000
    assert {
        (module, name)
        for module, name in arrows
        if module != "specdec"
        and room_of(module) != room_of(name)
        and FLOOR_OF[room_of(module)] <= FLOOR_OF[room_of(name)]
    } == set()


def test_no_imports_lead_in_a_circle() -> None:
    bodies = {module: ast.parse(path.read_text(encoding="utf-8")).body for module, path in FILES.items()}
    graph = {module: targets(module, set(at_the_top(body))) for module, body in bodies.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"circle: {' ← '.join(error.args[1])}") from None


def test_the_root_has_few_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_files_are_short() -> None:
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in FILES.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES}.keys() == LONGER
