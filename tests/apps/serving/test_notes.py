"""Notes on strategies reach the operator, once: at the start, or in the log of the request that found them."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from specdec import Generator, demo
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.process import prepared
from tests.apps.serving.serving import serving
from tests.support.built_in_model import built_in


@pytest.fixture(name="broken")
def _broken(tmp_path: Path) -> Path:
    """The folder of a head whose probabilities are NaN."""
    shutil.copytree(demo.head_folder(), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["norm.weight"].fill_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_a_head_that_is_left_out_is_logged_with_its_request(broken: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specdec.serving")
    body: dict[str, Any] = {"model": "demo", "prompt": "# heapq", "max_tokens": 12, "temperature": 0}
    with serving(offered={"broken": f"eagle3:head={broken}"}) as served:  # a request is logged after its answer
        answers = [served.post("/v1/completions", {**body, "proposer": name}).json() for name in ("broken", "off")]
    assert answers[0]["choices"] == answers[1]["choices"]
    noted = [vars(record).get("notes") for record in caplog.records if vars(record).get("event") == "request"]
    assert noted[0][-1] == "drafting goes on without the head: its probabilities are not finite"
    assert noted[1:] == [None]


def test_notes_found_at_the_start_are_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.heads.strategies.target_weights.alterations_of", lambda _: ["an adapter"])
    options = ServerOptions(name="demo", offered={"fast": f"eagle3:head={demo.head_folder()}"})
    with Generator(*built_in(), proposer="autoregressive") as generator:
        server = prepared(generator, options, "autoregressive")
        assert [note for note in server.notes if note.startswith("the model has an adapter")]
