"""The report of a training has the run's figures and the comparison's, and fetches nothing."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specdec import ModelError, RequestError, demo
from specdec.apps.comparison.prompts import demo_prompts
from specdec.apps.pictures.training_report import measure_head, speeds_of, write_training_report
from specdec.heads.head_facts import setup_of
from specdec.heads.training import TrainedHead
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.run import RunOutcome
from tests.apps.comparison.reported import build

FOUND = [Acceptance((0.2, 0.2), (0.2, 0.1), 500), Acceptance((0.5, 0.4), (0.5, 0.25), 500)]
SPEEDS = {"auto without the head": 1.5, "the head alone": 1.25, "auto with the head": 2.0}
CURVES = ["Loss", "Acceptance by depth", "Tokens per step on held-out text"]


def head(is_interrupted: bool = False) -> TrainedHead:
    run = RunOutcome(9000, 8000, 60.0, [(0, 9.5), (10, 7.25)], [(0, FOUND[0]), (20, FOUND[1])], 20, 20)
    return TrainedHead(Path("heads"), "", FOUND[1], 123456, is_interrupted, run)


def page(tmp_path: Path, comparison: Any, **given: Any) -> str:
    path = tmp_path / "report.html"
    write_training_report(path, head(**given), comparison, {"model": "<i>model</i>", "seed": "3"}, "specdec compare X")
    return path.read_text(encoding="utf-8")


def titles(text: str) -> list[str | None]:
    return [ElementTree.fromstring(svg).get("aria-label") for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_it_shows_the_runs_curves_and_the_measured_speeds(tmp_path: Path) -> None:
    text = page(tmp_path, build(SPEEDS))
    assert "1.75 tokens per step (chain of 2 draft tokens, held-out text)" in text
    assert "trained on 123,000 answer tokens of the model's own text" in text
    assert [*CURVES, "Tokens per step by category", "Speed-up over plain decoding"] == titles(text)
    assert re.search(r"accepted with all before</th><td>50 %</td><td>25 %</td>", text)
    assert "With the head, auto decodes 2.00 times as fast as plain decoding; without it, 1.50 times." in text
    assert "<code>specdec compare X</code> on prompts of yours" in text
    assert "<td>2.67</td>" in text  # tokens per step: lengths 3, 1 and 4
    assert "&lt;i&gt;model" in text
    assert "<i>" not in text
    assert not re.search(r'(src|href)="(?!#)|https?://(?!www\.w3\.org)', text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_speeds_are_the_comparisons() -> None:
    speeds = speeds_of(build(SPEEDS))
    assert (speeds.without, speeds.alone, speeds.with_head) == pytest.approx((1.5, 1.25, 2.0))
    assert speeds.is_faster


def test_without_a_comparison_it_has_curves_alone(tmp_path: Path) -> None:
    text = page(tmp_path, None, is_interrupted=True)
    assert titles(text) == CURVES
    assert "Interrupted: this is the best head until then." in text
    assert "On this machine" not in text


def test_a_run_interrupted_in_its_first_evaluation_has_no_curves(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_training_report(path, replace(head(), run=RunOutcome()), None, {"model": "m"}, "specdec compare X")
    text = path.read_text(encoding="utf-8")
    assert not titles(text)
    assert "<h2>Figures" not in text


def test_a_head_is_measured_with_and_without_the_other_sources(built_in: tuple[Any, Any]) -> None:
    model, tokenizer = built_in
    prompts = [each for each in demo_prompts() if each.category == "code"][:2]
    comparison, setup = measure_head(model, tokenizer, demo.head_folder(), 60.0, prompts, backend="hf")
    assert setup == setup_of(model, "hf")
    assert not speeds_of(comparison).is_faster, "two prompts are too few to tell"
    steps = {row.strategy: row.tokens_per_step for row in comparison.rows}
    assert {"autoregressive", "auto without the head", "auto with the head"} < steps.keys()  # auto drafts by time
    assert steps["the head alone"] > 3
    with pytest.raises(ModelError, match="nowhere"):
        measure_head(model, tokenizer, Path("nowhere"), 60.0)


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RequestError, match="can't be written to"):
        page(tmp_path, None)
