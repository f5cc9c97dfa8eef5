"""Pauses while a long prompt is read: which passes lie between two commits, and the arithmetic; no time is asserted."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.serving import pause
from benchmarks.serving.pause import Advance, Pause, Run, beside, pauses, requests_of
from specdec import Generator, ToyModel
from specdec.errors import RequestError
from specdec.record import Outcome, StepRecord


def call(kind: Any, ended: float, *requests: Any, seconds: float = 0.5, tokens: tuple[int, ...] = (1,)) -> Advance:
    outcomes = tuple(Outcome(request, tokens=tokens) for request in requests)
    return Advance(StepRecord(kind, outcomes, {"forward": seconds}, width=1, num_positions=9), ended - 0.5, ended)


def test_a_pause_goes_from_commit_to_commit_and_has_the_passes_between() -> None:
    first, second, long = (SimpleNamespace(name=name) for name in ("first", "second", "long"))
    calls = [
        call("step", 1.0, first, second),
        call("chunk", 3.0, long, tokens=()),
        call("step", 4.0, first),
        call("step", 4.5, first, second),
    ]
    found = pauses(calls, [first, second])  # type: ignore[list-item]  # like requests
    assert [each.seconds for each in found] == [3.0, 0.5, 3.5]
    assert [[one.record.kind for one in each.calls] for each in found] == [
        ["chunk", "step"],
        ["step"],
        ["chunk", "step", "step"],
    ]
    assert str(found[0]) == "chunk (1 x 1 nodes, 9 slots) 500.0 + step (1 x 1 nodes, 9 slots) 500.0 + beside 2000.0"


def test_the_longest_pause_is_held_against_a_chunk_and_the_median_step() -> None:
    chunk, prompt = (Pause(3.0, (call("chunk", 1.0),)), Pause(4.0, (call("prompt", 1.0),)))
    run = Run(chunks=(1.0, 1.5), last=2.0, steps=(0.4, 0.5, 9.0), pauses=(Pause(1.0, ()), chunk, prompt))
    assert (run.longest, run.longest_with_chunk) == (prompt, chunk)
    assert (run.over(chunk, 1.5), run.over(prompt, 1.5)) == (1.5, 2.0)


@pytest.mark.parametrize("proposer", ["autoregressive", "lookahead:N=3,W=3,G=3"])
def test_one_chunk_at_most_lies_between_two_commits(monkeypatch: pytest.MonkeyPatch, proposer: str) -> None:
    monkeypatch.setattr(pause, "WARM_UP", 2)
    monkeypatch.setattr(pause, "OWN_STEPS", 3)
    generator = Generator(ToyModel.random(vocab_size=40), proposer=proposer)
    with generator._binding.alone() as bound:
        chunk = bound.target.shapes.chunk
        own, reading = beside(bound, [[1, 2], [3]], [7] * (3 * chunk + 5))
        assert not bound.target.rows
    assert [[one.record.kind for one in each.calls] for each in own] == [["step"]] * 3 * 2
    assert [[one.record.kind for one in each.calls] for each in reading] == [
        *[["chunk", "step"]] * 3,
        ["prompt", "step"],
    ] * 2
    assert reading[3].calls[-1].record.num_rows == 3


def test_a_prompt_that_the_model_has_no_room_for_is_refused(built_in: tuple[Any, Any]) -> None:
    generator = Generator(built_in[0], proposer="autoregressive", numerics="fast")
    with generator._binding.alone() as bound, pytest.raises(RequestError, match="positions"):
        requests_of(bound, [[1] * 10**5], new_tokens=1)


def test_a_small_run_prints_a_row_for_each_strategy_and_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--threads", "1", "--tokens", "300", "--streams", "2", "--repeats", "1", "--numerics", "fast"]
    monkeypatch.setattr(sys, "argv", ["pause", *sizes])
    pause.main()
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{proposer}`" for proposer in pause.PROPOSERS]
