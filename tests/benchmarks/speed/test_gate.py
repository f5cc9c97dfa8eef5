"""The gate's verdict on made-up runs: slower, other texts, and ``auto`` behind ``prompt_lookup``."""

import pytest

from benchmarks.interleaved import Measurement, Run
from benchmarks.speed.gate import as_table, contender, lines_of

ENGINE = "OpenVINO float32"
TOKENS = (1, 2, 3, 4)


def runs(checkout: str, strategy: str, *seconds: float, tokens: tuple[int, ...] = TOKENS) -> list[Run]:
    """Runs of two prompts, each of which takes the given seconds, by repeat."""
    name = contender(checkout, ENGINE, strategy, "")
    return [
        Run(name, prompt, repeat, tokens, each, None, None, None, 1 << 20)
        for repeat, each in enumerate(seconds)
        for prompt in range(2)
    ]


def verdicts(*parts: list[Run]) -> dict[str, bool]:
    found = Measurement(runs=[run for part in parts for run in part])
    lines = lines_of(found, ENGINE, ["autoregressive", "prompt_lookup", "auto"], "")
    assert as_table(lines).count("worse") == sum(line.is_worse for line in lines)
    return {line.strategy: line.is_worse for line in lines}


@pytest.mark.parametrize(("now", "is_worse"), [((1.0, 1.02, 9.0), False), ((1.04, 1.05, 0.1), True)])
def test_medians_of_repeats_decide(now, is_worse):
    assert verdicts(runs("before", "autoregressive", 1.0, 1.0, 1.0), runs("now", "autoregressive", *now)) == {
        "autoregressive": is_worse
    }


def test_auto_is_no_slower_than_prompt_lookup():
    lookup = runs("now", "prompt_lookup", 1.0, 1.0, 1.0)
    assert verdicts(lookup, runs("now", "auto", 0.9, 0.9, 3.0)) == {"prompt_lookup": False, "auto": False}
    assert verdicts(lookup, runs("now", "auto", 1.1, 1.1, 0.5)) == {"prompt_lookup": False, "auto": True}


def test_another_text_fails_at_any_speed():
    before, now = runs("before", "auto", 1.0), runs("now", "auto", 0.5, tokens=(1, 2, 3, 5))
    assert verdicts(before, now) == {"auto": True}


def test_contenders_of_another_checkout_are_named_so():
    assert contender("before", ENGINE, "auto", "") == "specdec@before:auto+backend=openvino+numerics=exact"
    assert contender("now", ENGINE, "auto + head", "F").startswith("specdec:auto+eagle3:head=F+")
