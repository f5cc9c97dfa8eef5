"""The sentence of the demo: true whichever way the figures fall, and its parts multiply to the whole."""

import re

import pytest

from specdec.apps.side_by_side.agreement import Agreement
from specdec.apps.side_by_side.contenders import TimedAnswer
from specdec.apps.side_by_side.verdict import Measured, times, tokens_per_step, verdict

SAME = Agreement("same")
TIE = Agreement("numeric tie", 7, "the two scores are 1e-06 apart")
DEFECT = Agreement("defect", 7, "the model scores the token 3 lower")


def answers(*seconds: float, num_tokens: int = 60, num_steps: int = 60) -> tuple[TimedAnswer, ...]:
    return tuple(TimedAnswer(tuple(range(num_tokens)), each, num_steps) for each in seconds)


def measured(
    transformers: tuple[float, ...],
    plain: tuple[float, ...],
    ours: tuple[float, ...],
    agreements: tuple[Agreement, ...] = (SAME, SAME),
) -> Measured:
    same = (SAME,) * len(agreements)
    return Measured(
        ("explain", "code"),
        answers(*transformers),
        answers(*plain),
        answers(*ours),
        "OpenVINO",
        "exact",
        agreements,
        same,
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            measured((4.0, 4.0), (2.0, 2.0), (1.0, 1.0)),
            "On this machine specdec writes the same text 4.0 times as fast as transformers: OpenVINO makes it 2.0 "
            "times as fast, and drafts make that 2.0 times as fast.",
        ),
        (
            measured((4.0, 4.0), (1.0, 1.0), (2.0, 2.0)),
            "On this machine specdec writes the same text 2.0 times as fast as transformers: OpenVINO makes it 4.0 "
            "times as fast, and drafts slow that to 0.50 times (proposer='autoregressive' does without them).",
        ),
        (
            measured((1.0, 1.0), (2.0, 2.0), (4.0, 4.0)),
            "On this machine specdec is slower than transformers, 0.25 times as fast, and writes the same text: "
            "OpenVINO alone is 0.50 times as fast, and drafts slow that to 0.50 times "
            "(proposer='autoregressive' does without them).",
        ),
        (
            measured((4.0, 4.0), (4.0, 4.0), (1.0, 5.0)),
            "On this machine specdec writes the same text 1.3 times as fast as transformers, but is slower on code: "
            "OpenVINO changes nothing, and drafts make that 1.3 times as fast.",
        ),
        (
            measured((4.0, 4.0), (5.0, 5.0), (3.0, 7.0)),
            "On this machine specdec is slower than transformers on code, 0.80 times as fast in all, and writes the "
            "same text: OpenVINO alone is 0.80 times as fast, and drafts change nothing.",
        ),
        (
            measured((4.0, 4.0), (2.0, 2.0), (1.0, 1.0), (SAME, TIE)),
            "On this machine specdec writes the same text, but for 1 numeric tie, 4.0 times as fast as transformers: "
            "OpenVINO makes it 2.0 times as fast, and drafts make that 2.0 times as fast.",
        ),
        (
            measured((4.0, 4.0), (2.0, 2.0), (1.0, 1.0), (TIE, DEFECT)),
            "On this machine specdec writes ANOTHER TEXT 4.0 times as fast as transformers: OpenVINO makes it 2.0 "
            "times as fast, and drafts make that 2.0 times as fast.",
        ),
    ],
    ids=["faster", "drafts lose", "slower", "mixed, faster", "mixed, slower", "tie", "defect"],
)
def test_the_sentence_says_what_was_measured(found: Measured, sentence: str) -> None:
    assert verdict(found) == sentence


def test_a_busy_machine_is_named() -> None:
    said = verdict(measured((4.0, 4.0), (2.0, 2.0), (1.0, 1.0)), is_busy=True)
    assert said.startswith("On this machine, busy with other programs, specdec writes the same text 4.0 times")


def test_engine_and_drafts_multiply_to_the_speed_up_and_long_answers_count_more() -> None:
    found = measured((2.0, 12.0), (3.0, 4.0), (1.0, 3.0))
    assert found.speed_up == pytest.approx(14 / 4)
    assert found.by_kind == pytest.approx({"explain": 2.0, "code": 4.0})
    assert found.of_engine * found.of_drafts == pytest.approx(found.speed_up)
    assert [float(number) for number in re.findall(r"\d\.\d", verdict(found))] == [3.5, 2.0, 1.8]


def test_tokens_per_pass_are_over_all_passes() -> None:
    assert tokens_per_step((TimedAnswer((1, 2, 3), 1.0, 1), TimedAnswer((1,), 1.0, 1))) == 2.0


def test_ratios_near_one_keep_two_digits() -> None:
    assert [times(ratio) for ratio in (3.94, 1.2, 1.04, 0.83)] == ["3.9", "1.2", "1.04", "0.83"]
