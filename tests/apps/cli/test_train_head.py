"""The command that trains a head, on the built-in model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec.apps.pictures import training_report
from specdec.heads import training
from specdec.heads.head_facts import Speeds, facts_of
from specdec.heads.training import Plan, Progress, TrainedHead
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.run import RunOutcome
from specdec.heads.training.script import Script
from specdec.heads.training.text import TrainingText

FOUND = Acceptance((0.5, 0.4), (0.5, 0.2), 1000)


@pytest.fixture(name="given")
def _given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command passes to a training that does nothing; an error in ``raises`` is raised."""
    given: dict[str, Any] = {}

    def train_head(model: Any, tokenizer: Any, *others: Any) -> TrainedHead:
        given.update(zip(("out", "settings", "prompts", "resume", "watch"), others, strict=True))
        watch = given["watch"]
        watch.on_plan(Plan(600_000, 123_456, 400.0, 103.6, 36.0, "answers", has_training=True))
        watch.on_progress(Progress("training", 1000, 500.0, 90.0, 1.5))
        if "raises" in given:
            raise given["raises"]
        run = RunOutcome(losses=[(0, 5.0)], evaluations=[(0, FOUND)])
        return TrainedHead(given["out"] or Path("cached"), "", FOUND, 1000, given.get("is_interrupted", False), run)

    monkeypatch.setattr(training, "train_head", train_head)
    return given


def test_plan_progress_and_result_are_shown(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = run(
        "train", "head", "--model", "demo", "--minutes", "60", "--out", str(tmp_path), "--seed", "3", "--no-report"
    )
    assert code == 0
    planned = "about 600,000 answer tokens (123,000 of them written before) in 104 minutes, at 400 tokens/s, fewer if"
    assert f"text: the model writes answers: {planned} answers end early\n" in out
    assert "to expect: about 1.9 tokens per step (chain of 5 draft tokens, held-out text), as SmolLM2's head" in out
    assert "1.70 tokens per step (chain of 2 draft tokens, held-out text); accepted by depth: 50%, 20%" in out
    assert f"use it: --proposer auto+eagle3:head={tmp_path}" in out
    strategies = f"auto:head=false auto+eagle3:head={tmp_path} eagle3:head={tmp_path}"
    assert f"compare: specdec compare {strategies} --model demo\n" in out
    assert err == "training: 1,000 answer tokens, 500/s, 1:30 left, best so far 1.50 tokens per step on held-out text\n"
    assert (given["settings"].minutes, given["settings"].seed, given["resume"]) == (60.0, 3, False)


def test_prompts_are_encoded_and_the_cache_is_the_default(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def f(x):"}\n{"prompt_ids": [5, 6, 7]}\n')
    code, out, _ = run("train", "head", "--model", "demo", "--no-report", "--prompts", str(file))
    assert (code, given["out"]) == (0, None)
    assert len(given["prompts"]) == 2
    assert given["prompts"][1] == [5, 6, 7]
    assert "auto drafts with it once it is measured to be faster: specdec heads measure --model demo\n" in out
    assert "specdec compare auto:head=false auto+eagle3 eagle3 --model demo" in out


@pytest.mark.parametrize(("with_head", "said"), [(1.6, "from now on"), (1.4, "goes on without the head. More text")])
def test_a_head_is_autos_only_if_it_was_measured_to_be_faster(
    run: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_head: float, said: str
) -> None:
    """Nothing says so before, and time for the measurement is left."""
    speeds = Speeds(without=1.5, with_head=with_head, alone=1.0, is_faster=with_head > 1.5)

    def measure(*others: Any, backend: str) -> tuple[None, str]:
        given.update(seconds=others[-1])
        return None, f"{backend} here"

    monkeypatch.setattr(training_report, "measure_head", measure)
    monkeypatch.setattr(training_report, "speeds_of", lambda _: speeds)
    monkeypatch.setattr(training_report, "write_training_report", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("train", "head", "--model", "demo", "--minutes", "5")
    assert code == 0
    assert out.count("auto") == out[out.index("compare:") :].count("auto")
    assert f"{with_head:.2f} times as fast as plain decoding with the head and 1.50 times without" in out
    assert said in out
    assert ("with 35,000: the same command with more --minutes and --resume" in out) == (with_head < 1.5)
    assert given["seconds"] == 60.0
    assert 60.0 < given["settings"].reserved_seconds <= 60.0 + 30.0, "loading counts, a tenth of the time at most"
    assert facts_of(tmp_path / "cached").speeds == {"hf here": speeds}


def test_an_interruption_says_what_is_kept(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    given["is_interrupted"] = True
    options = "--vocabulary 512 --seed 3 --threads 1"
    code, out, _ = run("train", "head", "--model", "demo", "--kind", "eagle3", "--out", str(tmp_path), *options.split())
    assert code == 130
    assert f"report: {tmp_path / 'report.html'}" in out.replace("\n", "")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Interrupted" in page
    assert f"specdec train head --model demo --minutes 60 --out {tmp_path} {options}" in page
    assert f"go on with the training in {tmp_path}: the same command with --resume" in out
    assert "interrupted; the best head so far: 1.70 tokens per step" in out
    given["raises"] = KeyboardInterrupt()
    code, _, err = run("train", "head", "--model", "demo")
    assert code == 130
    assert (
        "before a head was trained; the text so far is kept in the cache folder: the same command with --resume" in err
    )


def test_exported_text_is_written_without_training(
    run: Any, given: dict[str, Any], monkeypatch: Any, tmp_path: Path
) -> None:
    document = np.arange(5, dtype=np.int32)
    written = TrainingText.of([document], [2]), Script.continuation(0, [1])
    monkeypatch.setattr(training, "write_own_text", lambda *_: written)
    code, out, _ = run("train", "head", "--model", "demo", "--export", "speculators", str(tmp_path / "text.jsonl"))
    assert (code, given) == (0, {})
    assert "1 document, 3 answer tokens, for speculators" in out.replace("\n", "")
    assert json.loads((tmp_path / "text.jsonl").read_text(encoding="utf-8")) == {
        "input_ids": [0, 1, 2, 3, 4],
        "loss_mask": [0, 0, 1, 1, 1],
    }
    code, _, err = run("train", "head", "--model", "demo", "--export", "vllm", str(tmp_path / "x"))
    assert code == 2
    assert "--export vllm: give specforge or speculators" in err
    code, _, err = run("train", "head", "--model", "demo", "--export", "specforge", str(tmp_path / "no" / "text.jsonl"))
    assert code == 2
    assert "can't be written (No such file or directory)" in err.replace("\n", "")

    kept = "the text so far is kept in folder: the same command with --resume goes on"
    options = ["--model", "demo", "--out", "folder", "--export", "specforge", str(tmp_path / "x.jsonl")]
    for num_tokens, state in ((0, "nothing was written yet: give the same command again"), (1, kept)):

        def interrupted(*others: Any, num_tokens: int = num_tokens) -> None:
            others[-1].on_progress(Progress("text", num_tokens, 500.0, 90.0))
            raise KeyboardInterrupt

        monkeypatch.setattr(training, "write_own_text", interrupted)
        code, _, err = run("train", "head", *options)
        assert code == 130
        assert f"x.jsonl was written; {state}" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--minutes", "inf"],
        ["--vocabulary", "0"],
        ["--seed", "-1"],
        ["--device", "nowhere"],
    ],
)
def test_wrong_usage_is_refused(run: Any, given: dict[str, Any], options: list[str]) -> None:
    assert run("train", "head", "--model", "demo", *options)[0] == 2
    assert not given
    assert run("train", "medusa", "--model", "demo")[0] == 2
    assert run("train")[0] == 2


def test_what_is_no_longer_trained_is_refused_in_a_line_that_names_what_is(run: Any, given: dict[str, Any]) -> None:
    for kind in ("medusa", "p_eagle"):
        code, out, err = run("train", "head", "--model", "demo", "--kind", kind)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--kind {kind}: only EAGLE-3 heads are trained" in err
    for options in ((), ("--model", "demo", "--out", "folder", "--ar-weight", "2")):
        code, out, err = run("train", "consistency", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "use `specdec train head`" in err
    assert not given
