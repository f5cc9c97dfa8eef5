"""What an index would get: metadata, licences, a page that leads nowhere wrong, and archives with just what belongs."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from email.message import Message
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest

from specdec.plugins.names import _OTHERS

ROOT = Path(__file__).parent.parent
FOLDERS = "specdec", "tests", "docs", "benchmarks", "plugins", "training", ".ci", ".github"
needs_hatchling = pytest.mark.skipif(
    not all(map(find_spec, ("hatchling", "hatch_fancy_pypi_readme"))), reason="hatchling isn't installed"
)


@pytest.fixture(scope="module", name="archives")
def _archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source archive, built as pip builds them."""
    folder = tmp_path_factory.mktemp("dist")
    code = "import hatchling.build as b, sys; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module", name="metadata")
def _metadata(archives: tuple[Path, Path]) -> Message:
    with ZipFile(archives[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


@needs_hatchling
def test_an_index_page_has_an_author_keywords_and_classifiers(metadata: Message) -> None:
    assert metadata["Author"] == "The specdec authors"
    assert "speculative decoding" in metadata["Keywords"]
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.13"} <= set(classifiers)
    assert metadata["License-Expression"] == "Apache-2.0 AND PSF-2.0"


@needs_hatchling
def test_an_index_page_shows_no_broken_image_or_link(metadata: Message) -> None:
    page = str(metadata.get_payload())
    assert page.startswith("# specdec\n")
    outside_code = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert re.findall(r"!\[|<img|src=", outside_code) == []
    links = re.findall(r"\]\(([^)]*)\)", outside_code)
    assert [link for link in links if not link.startswith("https://")] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"```.*?```", page, re.DOTALL) == re.findall(r"```.*?```", readme, re.DOTALL)
    assert "what is honoured" in page  # of a link, its text stays


@needs_hatchling
def test_licences_of_code_and_of_what_the_model_recites_are_in_both_archives(archives: tuple[Path, Path]) -> None:
    with ZipFile(archives[0]) as wheel, tarfile.open(archives[1]) as sdist:
        for name in ("LICENSE", "LICENSE-PYTHON"):
            own = (ROOT / name).read_bytes()
            (packed,) = (each for each in wheel.namelist() if each.endswith(f"licenses/{name}"))
            source = sdist.extractfile(f"{archives[1].name.removesuffix('.tar.gz')}/{name}")
            assert source is not None
            assert wheel.read(packed) == source.read() == own
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (ROOT / "LICENSE-PYTHON").read_text()


@needs_hatchling
def test_the_wheel_has_the_package_alone(archives: tuple[Path, Path]) -> None:
    names = set(ZipFile(archives[0]).namelist())
    assert "specdec/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {"specdec", f"{archives[0].name.split('-py3')[0]}.dist-info"}


@needs_hatchling
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_source_archive_has_the_repositorys_files_tests_included(archives: tuple[Path, Path]) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS, ":(glob)*"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    files = {name for name in listed if name and (ROOT / name).exists()}
    with tarfile.open(archives[1]) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert packed == files | {"PKG-INFO"}


@needs_hatchling
@pytest.mark.skipif(find_spec("twine") is None, reason="twine isn't installed")
def test_twine_finds_no_fault(archives: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == 2


def test_where_flash_attention_is_named_the_command_that_installs_it_is() -> None:
    plugin = ROOT / "plugins" / "specdec-flash"
    for folder in (ROOT, plugin):  # pip builds flash-attn without torch, which fails
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        required = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
        assert not [each for each in required if each.startswith("flash-attn") or "[flash]" in each]
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *plugin.rglob("*.md"), *plugin.rglob("*.py")]:
        text = page.read_text(encoding="utf-8")
        if "flash-attn" in text or "[flash]" in text:
            assert "pip install flash-attn --no-build-isolation" in text, page.name


def test_the_extra_for_cpus_is_the_plug_in_in_this_repository() -> None:
    ours, plugin = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in (".", "plugins/specdec-openvino")
    )
    assert ours["optional-dependencies"]["cpu"] == [plugin["name"]]
    assert f"pip install . ./plugins/{plugin['name']}" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_plug_ins_that_the_core_names_are_those_in_this_repository() -> None:
    folders = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert {*_OTHERS.values()} - {"specdec"} <= folders
    for (kind, name), distribution in _OTHERS.items():
        folder = ROOT if distribution == "specdec" else ROOT / "plugins" / distribution
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert project["name"] == distribution
        points = project["entry-points"]
        assert points["specdec"]
        assert kind != "commands" or name in points["specdec.commands"]
