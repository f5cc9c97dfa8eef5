"""The names that packages export: all there, few at the root, and imported when they are used."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import specdec
from specdec.plugins.names import BUILT_INS
from tests.support.fresh_process import modelling, modules_after

ROOT = Path(specdec.__file__).parent
# The packages that export names by ``lazy_exports``.
PACKAGES: dict[str, ModuleType] = {
    module: import_module(module)
    for path in sorted(ROOT.rglob("__init__.py"))
    if "lazy_exports(" in path.read_text(encoding="utf-8")
    for module in [".".join(path.parent.relative_to(ROOT.parent).parts)]
}
LISTS = {"proposers": "strategies", "kernels": "weights"}  # the packages of plug-ins whose kind is called otherwise


class Import(NamedTuple):
    """A name that a package imports for type checkers and editors, and exports."""

    name: str
    given: str | None


def typed_imports(package: ModuleType) -> list[Import]:
    """The statements of the package's ``if TYPE_CHECKING``."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    statements = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(statements) == len(block.body)
    return [Import(alias.name, alias.asname) for node in statements for alias in node.names]


def test_the_packages_that_are_documented_export_names() -> None:
    documented = ("backends", "constraints", "decoding", "masks", "sampling", "strategies", "testing", "verifiers")
    assert {"specdec", *(f"specdec.{package}" for package in documented)} <= PACKAGES.keys()


def test_every_name_exists_and_a_star_import_gives_just_these() -> None:
    given: dict[str, object] = {}
    exec("from specdec import *", given)
    assert given.keys() - {"__builtins__"} == set(specdec.__all__)


def test_the_names_of_the_root_are_few() -> None:
    assert len(specdec.__all__) <= 30


def test_the_names_that_the_documentation_imports_are_public() -> None:
    root = Path(__file__).parent.parent
    pages = "\n".join(page.read_text(encoding="utf-8") for page in [root / "README.md", *(root / "docs").glob("*.md")])
    documented = {
        name for names in re.findall(r"^from specdec import (.*)$", pages, re.MULTILINE) for name in names.split(", ")
    }
    assert {"Engine", "Generator", "Host", "Proposer", "Verifier", "hookimpl"} <= documented
    told = {"JacobiProposer", "PromptLookupProposer", "SpecdecError"}
    assert told | documented - {"demo"} <= set(specdec.__all__)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_every_exported_class_and_function_says_what_it_is(package: ModuleType) -> None:
    exported = {name: getattr(package, name) for name in package.__all__}
    documented = {name: each for name, each in exported.items() if inspect.isclass(each) or inspect.isfunction(each)}
    assert documented
    assert [name for name, each in documented.items() if not each.__doc__] == []


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_each_name_is_imported_as_itself(package: ModuleType) -> None:
    """A strict type checker takes others for private."""
    assert [each for each in typed_imports(package) if each.given != each.name] == []


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_no_name_is_a_modules_too(package: ModuleType) -> None:
    """Importing a module of the name would replace it in the package."""
    folder = Path(str(package.__file__)).parent
    modules = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert "__init__" in modules
    assert modules & set(package.__all__) == set()


@pytest.mark.parametrize("kind", ["proposers", "verifiers", "masks", "constraints", "backends"])
def test_built_in_plug_ins_are_exported(kind: str) -> None:
    package = PACKAGES[f"specdec.{LISTS.get(kind, kind)}"]
    classes = {place.partition(":")[2] for place in BUILT_INS[kind].values()}
    assert len(classes) >= 3
    assert classes - set(package.__all__) == set()


def test_dir_lists_every_name_before_it_is_used_and_no_package_imports_what_takes_long() -> None:
    listed = "\n".join(f"import {name}\nassert set({name}.__all__) <= set(dir({name}))" for name in PACKAGES)
    slow = {"torch", "transformers", "numpy", "pydantic", "pluggy", "rich", "hypothesis"}
    assert modules_after(listed) & slow == set()


def test_modules_are_imported_when_they_are_used() -> None:
    statements = "import specdec\nassert specdec.errors.SpecdecError is specdec.SpecdecError\nspecdec.demo.Prompt"
    assert "specdec.demo" in modules_after(statements)


def test_a_name_that_is_not_there_is_refused_as_any_module_would() -> None:
    with pytest.raises(AttributeError, match=r"^module 'specdec' has no attribute 'Genrator'$"):
        specdec.Genrator  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'specdec.strategies' has no attribute 'Lookahead'$"):
        import_module("specdec.strategies").Lookahead  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Genrator' from 'specdec'"):
        from specdec import Genrator  # type: ignore[attr-defined]  # noqa: F401


def test_importing_specdec_imports_neither_torch_nor_any_other_library_that_takes_long() -> None:
    assert modules_after("import specdec") & {"torch", "transformers", "numpy", "pydantic", "pluggy", "rich"} == set()


def test_the_errors_can_be_imported_without_torch() -> None:
    assert "torch" not in modules_after("from specdec import RequestError, SpecdecError")


def test_using_every_public_name_and_the_plug_ins_imports_no_transformers() -> None:
    modules = modules_after(
        "from specdec import *\nfrom specdec import Generator, LookaheadProposer, compare\n"
        "from specdec.apps.auditing import audit\n"
        "from specdec.plugins.registry import load_plugins\n"
        "registry = load_plugins()\n"
        "registry.make('proposers', 'lookahead'), registry.make('verifiers', 'match'), registry.make('masks', 'exact')"
    )
    assert "torch" in modules  # or it would prove nothing
    assert modelling(modules) == set()
    assert {name for name in modules if name.partition(".")[0] in {"transformers", "scipy", "matplotlib"}} == set()
