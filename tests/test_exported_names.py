"""The public names: few, sorted, all there, and imported when they are asked for."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import specdec
from tests.support.fresh_process import modelling, modules_after


def kind_and_name(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each in the order of their letters: ruff's RUF022."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_public_names_are_sorted_and_none_is_there_twice() -> None:
    assert specdec.__all__ == sorted(set(specdec.__all__), key=kind_and_name)


def test_every_public_name_exists_and_a_star_import_gives_just_these() -> None:
    given: dict[str, object] = {}
    exec("from specdec import *", given)
    assert given.keys() - {"__builtins__"} == set(specdec.__all__)


def test_the_public_names_are_few() -> None:
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


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        name for name in specdec.__all__ if callable(getattr(specdec, name)) and not getattr(specdec, name).__doc__
    ]
    assert silent == []


def typed_imports() -> dict[str, str]:
    """Each name and the module that it is imported from, as type checkers and editors read them."""
    tree = ast.parse(Path(specdec.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    statements = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in statements for alias in node.names}


def test_what_type_checkers_read_is_what_is_imported() -> None:
    assert typed_imports().keys() == set(specdec.__all__)
    wrong = [
        name
        for name, module in typed_imports().items()
        if getattr(specdec, name) is not getattr(import_module(module), name)
    ]
    assert wrong == []


def test_dir_lists_every_public_name_also_before_it_was_asked_for() -> None:
    assert set(specdec.__all__) <= set(dir(specdec))
    statements = "import specdec, sys\nassert set(specdec.__all__) <= set(dir(specdec))"
    assert "torch" not in modules_after(statements)


def test_a_name_that_is_not_there_is_refused_as_any_module_would() -> None:
    with pytest.raises(AttributeError, match=r"^module 'specdec' has no attribute 'Genrator'$"):
        specdec.Genrator  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Genrator' from 'specdec'"):
        from specdec import Genrator  # type: ignore[attr-defined]  # noqa: F401


def test_importing_specdec_imports_neither_torch_nor_any_other_library_that_takes_long() -> None:
    assert modules_after("import specdec") & {"torch", "transformers", "numpy", "pydantic", "pluggy", "rich"} == set()


def test_the_errors_can_be_imported_without_torch() -> None:
    assert "torch" not in modules_after("from specdec import RequestError, SpecdecError")


def test_using_every_public_name_and_the_plug_ins_imports_no_transformers() -> None:
    modules = modules_after(
        "from specdec import *\nfrom specdec import Generator, LookaheadProposer, compare\n"
        "from specdec.auditing import audit\n"
        "from specdec.plugins.registry import load_plugins\n"
        "registry = load_plugins()\n"
        "registry.make('proposers', 'lookahead'), registry.make('verifiers', 'match'), registry.make('masks', 'exact')"
    )
    assert "torch" in modules  # or it would prove nothing
    assert modelling(modules) == set()
    assert {name for name in modules if name.partition(".")[0] in {"transformers", "scipy", "matplotlib"}} == set()
