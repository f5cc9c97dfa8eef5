"""Commands under torchrun: any installed backend for several processes drives the model."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from specdec import demo, hookimpl
from specdec.backends import GroupBackend, HFBackend
from specdec.models import ModelSource, load_pretrained
from tests.support import entry_points

FOLDER = str(Path(demo.__file__).parent / "model")


class Grouped(HFBackend, GroupBackend):
    """A third party's: a group of one process."""

    events: list[str]
    leads: bool

    @classmethod
    def read_on_rank(cls, source: ModelSource, options: Any) -> tuple[Any, Any]:
        cls.events.append(f"read on rank {dist.get_rank()}")
        return load_pretrained(source.name)

    @classmethod
    @contextmanager
    def group(cls, model: Any, timeout: float) -> Iterator[bool]:
        cls.events.append("entered")
        try:
            yield cls.leads
        finally:
            cls.events.append("left")


@hookimpl
def hooked() -> dict[str, type]:
    return {"grouped": Grouped}


@pytest.fixture(autouse=True)
def _under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    names = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    for name, value in (names | {"MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("backend", ["auto", "grouped"])
def test_an_installed_backend_for_several_processes_drives_the_model(
    run: Any, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    Grouped.events, Grouped.leads = [], True
    entry_points.install(monkeypatch, specdec_backends=hooked)
    code, out, _ = run("generate", "# shutil", "--model", FOLDER, "--max-new-tokens", "4", "--backend", backend)
    assert (code, bool(out)) == (0, True)
    assert Grouped.events == ["read on rank 0", "entered", "left"]
    assert not dist.is_initialized()


def test_a_process_that_follows_ends_with_the_group(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Grouped.events, Grouped.leads = [], False
    entry_points.install(monkeypatch, specdec_backends=hooked)
    assert run("generate", "# shutil", "--model", FOLDER)[:2] == (0, "")
    assert Grouped.events == ["read on rank 0", "entered", "left"]
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            [],
            "torchrun has started several processes: distributed is a plug-in that isn't installed: pip install",
        ),
        (["--backend", "hf"], "--backend hf is for a single process: start it without torchrun"),
        (
            ["--backend", "distributed"],
            "distributed is a plug-in that isn't installed: pip install",
        ),
    ],
)
def test_what_does_not_decode_with_several_processes_is_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch, options: list[str], fault: str
) -> None:
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [])
    code, out, err = run("generate", "# shutil", *options)
    assert (code, out) == (2, "")
    assert fault in err
    assert err.count("\n") == 1


def test_options_for_a_single_process_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points.install(monkeypatch, specdec_backends=hooked)
    code, _, err = run("generate", "# shutil", "--device", "cpu")
    assert code == 2
    assert "--device and --dtype are for a single process" in err
