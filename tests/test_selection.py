"""The tests that a change needs: no test file is left out of all groups, and no user of what changed is missed."""

import subprocess
from pathlib import Path

import pytest

from tests import selection
from tests.selection import (
    APPS,
    EVERYTHING,
    ROOT,
    STRUCTURE,
    TESTS,
    app_of,
    built_on,
    code_of,
    folder_of,
    group_of,
    needed_by,
    selected,
)
from tests.test_imports import IMPORTS

OF_NO_PACKAGE = {"benchmarks", "laws", "site", "support", "typing"}


def test_each_folder_of_tests_has_the_name_of_what_it_tests() -> None:
    packages = {path.parent.name for path in (ROOT / "specdec").glob("*/__init__.py")}
    folders = {test.split("/")[1] for test in TESTS if test.count("/") > 1}
    assert len(APPS) > 8
    assert folders <= packages | OF_NO_PACKAGE
    assert {path.name for path in (ROOT / "tests" / "apps").iterdir()} - {"__pycache__"} <= {
        app.partition(".")[2] for app in APPS
    }
    assert {group_of(test) for test in TESTS} - {"core", "benchmarks"} == APPS - {"apps.loadtest"}


def test_a_change_of_every_package_together_runs_every_test() -> None:
    """Each file is in a group, and each group is run by the change of its package."""
    packages = [f"specdec/{folder_of(app)}/x.py" for app in APPS] + ["specdec/tree.py", "benchmarks/x.py"]
    assert {*TESTS} <= set[str]().union(*map(needed_by, packages))


def app_in(module: str) -> str:
    return app_of(module.replace(".", "/"))


def test_the_core_uses_no_application_and_plug_ins_the_command_line_alone() -> None:
    """Else a change of an application could break what it doesn't run."""
    fronts = {f"specdec.{name}" for name in ("__main__", "auditing", "in_transformers", "training")}
    core = {module for module in IMPORTS if module.count(".") and not app_in(module)} - fronts
    users = {(module, name) for module in core for name in IMPORTS[module] if app_in(name)}
    assert len(core) > 200
    assert users == set()
    assert [app for app in APPS if f"specdec.{app}" in code_of("plugins")] == ["apps.cli"]


@pytest.mark.parametrize(
    ("app", "others"),
    [
        ("apps.auditing", {"apps.cli", "benchmarks"}),  # cli imports it in a function
        ("apps.in_transformers", {"apps.cli", "apps.serving", "benchmarks"}),
        ("apps.loadtest", {"apps.cli", "benchmarks"}),
        ("heads.training", {"apps.cli", "apps.pictures", "benchmarks"}),
        ("apps.cli", {"benchmarks"}),  # which run `python -m specdec`
    ],
)
def test_what_is_built_on_an_application(app: str, others: set[str]) -> None:
    assert built_on(app) == {app} | others


@pytest.mark.parametrize(
    ("changed", "runs", "leaves"),
    [
        (
            "specdec/apps/serving/page.html",
            {"tests/apps/serving", "tests/apps/cli", "tests/test_readme.py"},
            {"tests/laws", "tests/apps/chat"},
        ),
        (
            "specdec/apps/comparison/runs.py",
            {"tests/apps/comparison", "tests/apps/auditing", "tests/apps/cli"},
            {"tests/laws"},
        ),
        # specdec exports custom_generate without an import.
        (
            "specdec/apps/in_transformers/arguments.py",
            {"tests/apps/in_transformers", "tests/apps/serving", "tests/test_texts.py"},
            {"tests/apps/chat"},
        ),
        ("specdec/__main__.py", {"tests/apps/cli"}, {"tests/laws"}),
        ("specdec/apps/cli/options.py", {"tests/apps/cli", "plugins/specdec-datastore"}, {"tests/laws"}),
        (
            "specdec/strategies/jacobi.py",
            {"tests/laws", "tests/strategies", "plugins/specdec-vllm"},
            {"tests/apps/cli"},
        ),
        ("specdec/plugins/names.py", {"tests/laws", "tests/strategies", "tests/runtime"}, {"tests/apps/serving"}),
        ("plugins/specdec-example/a.py", {"plugins/specdec-example", "tests/test_readme.py"}, {"tests/laws"}),
        ("benchmarks/speed/limit.py", {"tests/benchmarks"}, {"tests/laws", "tests/apps/cli"}),
        ("docs/step.md", {"tests/site", "tests/test_readme.py", "tests/test_packaging.py"}, {"tests/laws"}),
        ("mkdocs.yml", {"tests/site"}, {"tests/laws"}),
        ("Makefile", {"tests/test_readme.py"}, {"tests/laws"}),
        (
            "tests/support/families.py",
            {"tests/backends/test_families.py", "plugins/specdec-distributed"},
            {"tests/apps/chat"},
        ),
        ("tests/support/waiting.py", {"tests/apps/serving/test_streams.py"}, {"tests/laws", "tests/apps/serving"}),
        ("tests/apps/cli/conftest.py", {"tests/apps/cli"}, {"tests/laws"}),
        ("tests/typing/mypy.ini", {"tests/typing"}, {"tests/laws"}),
        ("tests/laws/test_mask_laws.py", {"tests/laws/test_mask_laws.py"}, {"tests/laws"}),
    ],
)
def test_a_change_runs_its_users_and_leaves_out_others(changed: str, runs: set[str], leaves: set[str]) -> None:
    found = {*selected([changed])}
    assert runs <= found
    assert found >= STRUCTURE
    assert not leaves & found


@pytest.mark.parametrize("changed", ["pyproject.toml", "tests/conftest.py", "specdec", "new/file.py"])
def test_what_has_no_rule_runs_everything(changed: str) -> None:
    assert needed_by(changed) >= {*TESTS} or needed_by(changed) == EVERYTHING


def test_removed_and_new_files_belong_to_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet", "--initial-branch=main")
    for name in ("kept", "edited", "removed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "--quiet", "--message=one")
    git("checkout", "--quiet", "-b", "change")
    (tmp_path / "edited").write_text("anew")
    (tmp_path / "removed").rename(tmp_path / "renamed")
    git("commit", "--quiet", "--all", "--message=two")
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    assert sorted(selection.changed_since("main")) == ["edited", "removed", "renamed"]
