"""A cache folder for the whole run, and tiny models of many families, those of specdec's own tests and a few more."""

import gc
import importlib.util
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import openvino as ov
import pytest
import torch

_TESTS = Path(__file__).parents[3] / "tests"
_REFUSED = {"gemma2", "llama4"}
_MORE = {
    "granite": ("GraniteConfig", {}),
    "gemma": ("GemmaConfig", {"head_dim": 8}),
    "smollm3": ("SmolLM3Config", {}),
    "stablelm": ("StableLmConfig", {}),
    "nemotron": ("NemotronConfig", {}),
}


@cache
def _families() -> ModuleType:
    return _module("support/families.py")


def _module(path: str) -> ModuleType:
    """A module of specdec's own tests."""
    found = importlib.util.spec_from_file_location(f"specdec_{Path(path).stem}", _TESTS / path)
    assert found is not None
    assert found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded


@cache
def _model(name: str) -> Any:
    known = _families()
    if name in _MORE:
        config, arguments = _MORE[name]
        return known.make(config, {**known.SMALL, **arguments})
    return known.make(*(known.TREES.get(name) or known.FIXED[name]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        names = sorted({*_families().TREES, *_MORE} - _REFUSED)
        assert len(names) >= 20
        metafunc.parametrize("family", names)


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def families() -> ModuleType:
    """The module of specdec's own tests that makes tiny random models."""
    return _families()


@pytest.fixture(scope="session")
def tiny_gguf() -> ModuleType:
    """The module of specdec's own tests that writes tiny GGUF files."""
    for library in ("gguf", "accelerate"):
        pytest.importorskip(library, reason="a GGUF file is read with gguf and accelerate")
    return _module("demo/tiny_gguf.py")


@pytest.fixture(scope="session")
def make() -> Any:
    """A tiny random model of a family, the same object each time."""
    return _model


@pytest.fixture(scope="session")
def bfloat16() -> torch.dtype:
    """The dtype; a test that asks for it is skipped on processors without AVX512-BF16 or the like."""
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("OpenVINO doesn't support bfloat16 on this processor")
    return torch.bfloat16


@pytest.fixture
def in_fork() -> Callable[[Callable[[], object]], None]:
    """A function that runs another one in a forked process, and fails unless it returns within half a minute."""
    return _in_fork


def _in_fork(run: Callable[[], object]) -> None:
    gc.collect()  # or a collection in the child would free other tests' graphs, which may hang
    child = os.fork()
    if not child:
        status = 1
        try:
            run()
            status = 0
        except BaseException:  # pytest's own failures included
            traceback.print_exc()
        finally:
            os._exit(status)
    for _ in range(300):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the forked process hangs")
