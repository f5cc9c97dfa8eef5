"""The public names: few, sorted, and all there."""

import re
from pathlib import Path

import specdec


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
    assert len(specdec.__all__) <= 36


def test_the_names_that_the_documentation_imports_are_public() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    documented = {
        name for names in re.findall(r"^from specdec import (.*)$", readme, re.MULTILINE) for name in names.split(", ")
    }
    assert {"Engine", "Generator", "Host", "Proposer", "hookimpl"} <= documented
    told = {"AutoregressiveProposer", "JacobiProposer", "PromptLookupProposer", "SpecdecError"}
    assert told | documented - {"demo"} <= set(specdec.__all__)


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        name for name in specdec.__all__ if callable(getattr(specdec, name)) and not getattr(specdec, name).__doc__
    ]
    assert silent == []
