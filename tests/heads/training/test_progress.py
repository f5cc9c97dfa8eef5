"""What a plan says to expect is what was measured."""

import json
import re
from pathlib import Path

import pytest

from specdec.heads.training.progress import MEASURED, Plan

ROOT = Path(__file__).parents[3]


def test_the_expected_tokens_per_step_are_those_of_the_runs() -> None:
    results = ROOT / "benchmarks" / "results"
    points = json.loads((results / "head_smollm2_h100.json").read_text())["points"]
    # The rate of 4 is the last of three.
    on_a_gpu = {int(point["name"].split()[0]): 1 + sum(point["evaluations"][-1][1]["chain"]) for point in points}
    runs = json.loads((results / "head_smollm2_own_text.json").read_text())["runs"]
    on_two_cores = {run["answer_tokens"]: run["tokens_per_step"] for run in runs}
    found = on_a_gpu | on_two_cores
    for size, tokens_per_step in MEASURED:
        nearest = min(found, key=lambda each: abs(each - size))
        assert size == pytest.approx(nearest, rel=0.002)
        assert tokens_per_step == pytest.approx(found[nearest], abs=0.0051)


@pytest.mark.parametrize(
    ("num_answer_tokens", "expected"),
    [
        (34_999, "fewer than 1.5 tokens per step .* after 35,000 answer tokens \\(give about --minutes 4\\)"),
        (35_000, "about 1.5 tokens per step .* after 35,000 answer tokens"),
        (2_499_999, "about 2.6 tokens per step .* after 1.17 million answer tokens"),
        (10**9, "about 3.2 tokens per step .* after 10 million answer tokens"),
    ],
)
def test_a_plan_expects_what_the_nearest_smaller_text_gave(num_answer_tokens: int, expected: str) -> None:
    """At 400 tokens/s, 35,000 take 1.5 minutes, which are 24 of 60 parts of the time."""
    *_, last = Plan(num_answer_tokens, 0, 400.0, 24.0, 36.0, "answers", has_training=True).lines()
    assert re.match(f"to expect: {expected}", last)
