"""What a plan says to expect is what was measured."""

import json
import re
from pathlib import Path

import pytest

from specdec.heads.training.progress import MEASURED, Plan

ROOT = Path(__file__).parents[3]


def test_the_expected_tokens_per_step_are_those_of_the_runs() -> None:
    points = json.loads((ROOT / "benchmarks/results/head_smollm2_h100.json").read_text())["points"]
    # The rate of 4 is the last of three.
    held_out = {int(point["name"].split()[0]): point["evaluations"][-1][1]["chain"] for point in points}
    measured = dict(MEASURED)
    assert measured.keys() == held_out.keys()
    for size, tokens_per_step in measured.items():
        assert tokens_per_step == pytest.approx(1 + sum(held_out[size]), abs=0.0051)


@pytest.mark.parametrize(
    ("num_answer_tokens", "expected"),
    [
        (499_999, "fewer than 1.8 tokens per step .* after 500,000 answer tokens \\(give about --minutes 53\\)"),
        (500_000, "about 1.8 tokens per step .* after 500,000 answer tokens"),
        (2_499_999, "about 2.2 tokens per step .* after 1 million answer tokens"),
        (10**9, "about 3.2 tokens per step .* after 10 million answer tokens"),
    ],
)
def test_a_plan_expects_what_the_nearest_smaller_text_gave(num_answer_tokens: int, expected: str) -> None:
    """At 400 tokens/s, 500,000 take 20.8 minutes, which are 24 of 60 parts of the time."""
    *_, last = Plan(num_answer_tokens, 0, 400.0, 24.0, 36.0, "answers", has_training=True).lines()
    assert re.match(f"to expect: {expected}", last)
