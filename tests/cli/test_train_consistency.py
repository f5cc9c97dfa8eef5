"""The command that tunes a model for Jacobi decoding, on the built-in model."""

from pathlib import Path
from typing import Any

import pytest

from specdec import training
from specdec.training import Plan, Progress, TunedModel
from specdec.training.consistency_run import ConsistencyPlan
from specdec.training.tuned_model import ConsistencyRun, JacobiEvaluation

BEFORE, AFTER = JacobiEvaluation(1.05, 0.4, 1000), JacobiEvaluation(1.8, 0.41, 1000)


@pytest.fixture(name="given")
def _given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command passes to a training that does nothing; an error in ``raises`` is raised."""
    given: dict[str, Any] = {}

    def train(model: Any, tokenizer: Any, *others: Any) -> TunedModel:
        given.update(zip(("out", "settings", "prompts", "resume", "watch"), others, strict=True))
        watch = given["watch"]
        watch.on_plan(Plan(600_000, 0, 400.0, 24.0, 36.0, "answers", ConsistencyPlan(8, given["out"])))
        watch.on_progress(Progress("training", 1000, 500.0, 90.0, 1.5))
        if "raises" in given:
            raise given["raises"]
        return TunedModel(given["out"], BEFORE, AFTER, 1000, given.get("is_interrupted", False), ConsistencyRun())

    monkeypatch.setattr(training, "train_consistency", train)
    return given


def test_plan_result_and_card_say_that_it_is_another_model(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    options = "--minutes 30 --seed 3 --block-size 6 --learning-rate 0.001 --ar-weight 2 --max-loss-increase 0.2"
    code, out, err = run("train", "consistency", "--model", "demo", "--out", str(tmp_path), *options.split())
    assert code == 0
    assert "text: the model writes answers: about 600,000 answer tokens in 24 minutes" in out
    assert "training: all weights of a copy of the model, for 36 minutes" in out
    assert f"this makes another model, in {tmp_path}, which writes other texts; the given model stays as it is" in out
    assert "Jacobi decoding with 6 guesses: 1.05 tokens per step before, 1.80 after, on held-out text" in out
    assert "loss on the original's text 0.400 before, 0.410 after" in out
    assert f"{tmp_path} has another model, which writes other texts than demo" in out
    assert f"use it: specdec generate --model {tmp_path} --proposer jacobi:n=6" in out
    assert "best so far 1.50 tokens per step" in err
    settings = given["settings"]
    assert (settings.minutes, settings.seed, settings.block_size) == (30.0, 3, 6)
    assert (settings.learning_rate, settings.ar_weight) == (0.001, 2.0)
    assert (settings.max_loss_increase, given["resume"]) == (0.2, False)


def test_defaults_are_the_library_s(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    assert run("train", "consistency", "--model", "demo", "--out", str(tmp_path))[0] == 0
    assert given["settings"] == training.ConsistencySettings()


def test_an_interruption_says_what_is_kept(run: Any, given: dict[str, Any], tmp_path: Path) -> None:
    given["is_interrupted"] = True
    code, out, _ = run("train", "consistency", "--model", "demo", "--out", str(tmp_path))
    assert code == 130
    assert f"interrupted; {tmp_path} has the best model so far: the same command with --resume goes on" in out
    given["raises"] = KeyboardInterrupt()
    code, _, err = run("train", "consistency", "--model", "demo", "--out", str(tmp_path))
    assert code == 130
    assert f"interrupted before there was a better model; the text so far is kept in {tmp_path}" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--minutes", "0"],
        ["--block-size", "1"],
        ["--learning-rate", "0"],
        ["--learning-rate", "nan"],
        ["--ar-weight", "nan"],
        ["--ar-weight", "inf"],
        ["--max-loss-increase", "nan"],
        ["--device", "nowhere"],
    ],
)
def test_wrong_usage_is_refused(run: Any, given: dict[str, Any], options: list[str], tmp_path: Path) -> None:
    assert run("train", "consistency", "--model", "demo", "--out", str(tmp_path), *options)[0] == 2
    assert run("train", "consistency", "--model", "demo")[0] == 2
    assert not given
