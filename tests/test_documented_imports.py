"""Names come from packages, not from their files: in documents, plug-ins, laws and whatever else others read or copy.

So a file can be moved without breaking what is documented.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_exported_names import PACKAGES

ROOT = Path(__file__).parent.parent
BELOW_THE_ROOT = {name: package for name, package in PACKAGES.items() if name != "specdec"}
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/*.md")]
CODE = [
    ROOT / "tests/typing/user_code.py",
    *(ROOT / "tests/laws").rglob("*.py"),
    *(ROOT / "specdec/testing").rglob("*.py"),
    *(path for path in ROOT.glob("plugins/*/**/*.py") if "build" not in path.parts),
]
STATEMENT = re.compile(r"\bfrom (specdec\.[\w.]+) import (\([^)]*\)|[\w, ]+)")
DOTTED = re.compile(r"\bspecdec\.[a-z_]+\.\w+(?:\.\w+)*")

# Modules that are imported all the same. A package can't export a function that is named as its module.
NAMED_AS_A_FUNCTION = {"specdec.machine.cache_folder", "specdec.models.leaf_call", "specdec.models.position_limit"}
# Inner parts that the OpenVINO plug-in shares: no engine of others can rely on them.
INNER = {
    "specdec.models.checkpoint_files",
    "specdec.models.gguf_file",
    "specdec.models.notes",
    "specdec.runtime.probes.walk",
}
# Inner parts that a law or a test of a plug-in is about.
TESTED = {
    "specdec.decoding.prefix_block",
    "specdec.decoding.request_state",
    "specdec.decoding.signals",
    "specdec.heads.block_folder",
    "specdec.heads.drafting",
    "specdec.heads.files",
    "specdec.heads.pair_cache",
    "specdec.masks.visibility",
    "specdec.runtime.backend_choice",
    "specdec.heads.strategies.engine",
    "specdec.heads.strategies.sampled_candidates",
    "specdec.testing.checks",
    "specdec.testing.fixed_growth",
}
# Contracts whose laws are in their modules' docstrings, which the reference shows.
CONTRACTS = {"specdec.constraints.base", "specdec.strategies.signals", "specdec.verifiers.base"}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The modules that a file imports, with the name that it takes from each, if any."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def named_in(text: str) -> Iterator[tuple[str, str]]:
    """What a document imports or names: the packages or modules, and the names in them."""
    for module, names in STATEMENT.findall(text):
        yield from ((module, name) for name in re.findall(r"\w+", names))
    for dotted in DOTTED.findall(text):
        package = package_of(dotted)
        if dotted not in CONTRACTS and dotted != package:
            yield package, dotted.removeprefix(f"{package}.").partition(".")[0]


def package_of(module: str) -> str:
    """The innermost package that exports names and has the module; the module's first two parts if none does."""
    parts = module.split(".")
    around = (".".join(parts[:end]) for end in range(len(parts), 1, -1))
    return next((package for package in around if package in BELOW_THE_ROOT), ".".join(parts[:2]))


def is_exported(module: str, name: str) -> bool:
    """Whether a package exports the name; also True for modules at the root and those of other distributions."""
    package = package_of(module)
    return package not in BELOW_THE_ROOT or (
        module == package and (not name or f"{module}.{name}" in PACKAGES or name in BELOW_THE_ROOT[package].__all__)
    )


def is_in(path: Path, module: str) -> bool:
    """Whether a file of a package imports another file of that package."""
    return path.is_relative_to(ROOT / package_of(module).replace(".", "/"))


def modules_of_files() -> set[tuple[Path, str]]:
    """Files with the modules inside packages that they import, those of their own package aside."""
    pairs = ((path, *each) for path in CODE for each in imports(path))
    return {(path, module) for path, module, name in pairs if not is_exported(module, name) and not is_in(path, module)}


def test_the_statements_are_read() -> None:
    found = {each for path in CODE for each in imports(path)}
    assert {("specdec.strategies", "MergedProposer"), ("specdec.backends", "Backend"), ("torch", "")} <= found
    page = (
        "from specdec.masks.dense import DenseCompiler\nfrom specdec.masks import (\n  base,\n)\n`specdec.heads.eagle`"
    )
    wrong = [("specdec.masks.dense", "DenseCompiler"), ("specdec.masks", "base"), ("specdec.masks", "dense")]
    assert [each for each in named_in(page) if not is_exported(*each)] == [*wrong, ("specdec.heads", "eagle")]
    page = "from specdec.strategies import JacobiProposer\nfrom specdec.tree import merge\nspecdec.masks.DenseCompiler"
    assert len(list(named_in(page))) == 3
    assert all(is_exported(*each) for each in named_in(page))


def test_plug_ins_laws_and_checks_import_from_packages() -> None:
    inner = {(path, module) for path, module in modules_of_files() if module not in NAMED_AS_A_FUNCTION | INNER}
    assert {(path.name, module) for path, module in inner if module not in TESTED} == set()
    assert {path.name for path, _ in inner if "tests" not in path.relative_to(ROOT).parts} == set()


def test_no_module_is_allowed_in_vain() -> None:
    assert {module for _, module in modules_of_files()} == NAMED_AS_A_FUNCTION | INNER | TESTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_what_packages_export(page: Path) -> None:
    assert [each for each in named_in(page.read_text(encoding="utf-8")) if not is_exported(*each)] == []


def test_examples_in_docstrings_import_what_packages_export() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "specdec").rglob("*.py"))
    examples = "\n".join(re.findall(r"^ *>>> .*", source, flags=re.MULTILINE))
    assert ("specdec.testing", "first_drafts") in named_in(examples)
    assert [each for each in named_in(examples) if not is_exported(*each)] == []
