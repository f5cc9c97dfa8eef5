"""Shared fixtures: models that are loaded once; one thread in each process, since small products only lose by more."""

import gc
import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from specdec import demo
from specdec.costs import Costs
from specdec.demo import smollm2 as real
from specdec.runtime.probes.costs import measure_costs
from tests.support import built_in_model
from tests.support.browser import chromium, why_no_browser
from tests.support.examples import BY_DAY

# Loading torch and building models makes first examples slow; nothing here is about time.
settings.register_profile("specdec", deadline=None, derandomize=True, max_examples=BY_DAY)
# Asked for by --hypothesis-profile=NAME.
settings.register_profile("nightly", deadline=None, derandomize=True, max_examples=10 * BY_DAY)
settings.register_profile("many", deadline=None, max_examples=100 * BY_DAY)
settings.load_profile("specdec")


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")  # of commands that tests start
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _fetched() -> Path:
    """The real model's folder, where it was fetched before the tests have a cache folder of their own."""
    return real.home()


@pytest.fixture(scope="session", autouse=True)
def _cache(_fetched: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the tests' own, without the real model: it would be the default model.

    Findings about models are those of all of xdist's processes, and of more models than a user has.
    """
    folder = tmp_path_factory.mktemp("cache")
    (folder / "specdec").mkdir()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent / "findings"
        shared.mkdir(exist_ok=True)
        with suppress(OSError):  # Windows may refuse links
            (folder / "specdec" / "findings").symlink_to(shared, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder))
        patched.setattr("specdec.runtime.probes.findings._MOST_FILES", 10_000)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def _installed_once() -> Iterator[None]:
    """What is installed is read once: a generator reads it, or a client of a server certificates, and nothing changes.

    Likewise what lives as long as the process, such as modules and tests, is not searched for garbage again and again.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specdec.plugins.names.entry_points", cache(entry_points))
        patched.setattr("specdec.machine.facts.version", cache(version))
        patched.setattr("ssl.create_default_context", cache(ssl.create_default_context))  # 30 ms for each request
        yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _brief_costs() -> Iterator[None]:
    """A round of passes decides what they cost, on which no text depends: strategies have it measured for a model.

    It is kept, as if many rounds had agreed about it.
    """

    def clear(*given: Any, **options: Any) -> Costs:
        return replace(measure_costs(*given, **options), is_clear=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specdec.runtime.probes.costs.measure_costs", clear)
        patched.setattr("specdec.runtime.probes.costs.REPEATS_AT_LOAD", 1)
        patched.setattr("specdec.runtime.probes.costs.SECONDS_AT_LOAD", 0.1)
        yield


@pytest.fixture
def no_findings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that plants a fault in specdec, or counts probes: it examines models anew, in a cache of its own.

    Other tests share what was found about a model, by its fingerprint.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("no findings")))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window; a skip if there is none."""
    pytest.importorskip("selenium")
    if reason := why_no_browser():
        pytest.skip(reason)
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def built_in() -> tuple[Any, Any]:
    """The built-in model and its tokenizer."""
    return built_in_model.built_in()


@pytest.fixture(scope="session")
def smollm2(_fetched: Path) -> Callable[[str], tuple[Any, Any]]:
    """``smollm2(dtype)``: the real model and its tokenizer, loaded once for a dtype; a skip where it wasn't fetched."""
    if not _fetched.exists():
        pytest.skip("the real model has not been fetched: make real-model")
    return cache(partial(real.load, folder=_fetched))


@pytest.fixture
def copy_as_smollm2(_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which the built-in model has been fetched as SmolLM2."""
    folder = tmp_path / "cached" / "specdec" / "smollm2"
    for dtype in ("float32", "bfloat16"):
        shutil.copytree(Path(demo.__file__).parent / "model", folder / dtype)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cached"))
    return folder


@pytest.fixture
def smollm2_in_cache(smollm2: object, _fetched: Path, _cache: Path) -> Iterator[Path]:
    """The real model in the tests' cache folder; a skip where it wasn't fetched."""
    link = _cache / "specdec" / _fetched.name
    link.symlink_to(_fetched)
    yield link
    link.unlink()
