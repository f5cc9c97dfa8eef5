"""The command that trains a head, on the built-in model."""

from pathlib import Path
from typing import Any

import pytest

from specdec import training
from specdec.training import Plan, Progress, TrainedHead
from specdec.training.acceptance import Acceptance

FOUND = Acceptance((0.5, 0.4), (0.5, 0.2), 1000)


@pytest.fixture(name="given")
def _given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command passes to a training that does nothing; an error in ``raises`` is raised."""
    given: dict[str, Any] = {}

    def train_head(model: Any, tokenizer: Any, *others: Any) -> TrainedHead:
        given.update(zip(("out", "settings", "prompts", "resume", "watch"), others, strict=True))
        watch = given["watch"]
        watch.on_plan(Plan(600_000, 0, 400.0, 24.0, 36.0))
        watch.on_progress(Progress("training", 1000, 500.0, 90.0, 1.5))
        if "raises" in given:
            raise given["raises"]
        return TrainedHead(given["out"] or Path("cached"), "", FOUND, 1000, given.get("is_interrupted", False))

    monkeypatch.setattr(training, "train_head", train_head)
    return given


def test_plan_progress_and_result_are_shown(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = run("train", "head", "--model", "demo", "--minutes", "60", "--out", str(tmp_path), "--seed", "3")
    assert code == 0
    assert "text: about 600,000 answer tokens in 24 minutes at about 400 tokens/s" in out
    assert "on SmolLM2, 0.5 million answer tokens gave 1.8 tokens per step" in out
    assert "1.70 tokens per step on held-out text by a chain of 2 (accepted by depth: 0.50, 0.20)" in out
    assert f"use it: --proposer eagle3:head={tmp_path}" in out
    assert err == "training: 1,000 answer tokens, 500/s, 1:30 left, best so far 1.50 tokens per step\n"
    assert (given["settings"].minutes, given["settings"].seed, given["resume"]) == (60.0, 3, False)


def test_prompts_are_encoded_and_the_cache_is_the_default(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def f(x):"}\n{"prompt_ids": [5, 6, 7]}\n')
    code, out, _ = run("train", "head", "--model", "demo", "--prompts", str(file))
    assert (code, given["out"]) == (0, None)
    assert len(given["prompts"]) == 2
    assert given["prompts"][1] == [5, 6, 7]
    assert "auto, the default strategy, drafts with it for this model (cached" in out
    assert "specdec compare auto:head=false auto eagle3 --model MODEL" in out


def test_an_interruption_says_what_is_kept(run: Any, given: dict[str, Any]) -> None:
    given["is_interrupted"] = True
    code, out, _ = run("train", "head", "--model", "demo")
    assert code == 130
    assert "interrupted; the best head so far: 1.70 tokens per step" in out
    given["raises"] = KeyboardInterrupt()
    code, _, err = run("train", "head", "--model", "demo")
    assert code == 130
    assert "before a head was trained; the text so far is kept: --resume" in err


@pytest.mark.parametrize("options", [["--minutes", "0"], ["--vocabulary", "0"], ["--device", "nowhere"]])
def test_wrong_usage_is_refused(run: Any, given: dict[str, Any], options: list[str]) -> None:
    assert run("train", "head", "--model", "demo", *options)[0] == 2
    assert not given
    assert run("train", "medusa", "--model", "demo")[0] == 2
