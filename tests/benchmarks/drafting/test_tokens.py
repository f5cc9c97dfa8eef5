"""Tokens per step by category: figures that can be counted by hand, and texts that differ."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.drafting import tokens
from benchmarks.drafting.tokens import Run, decode, num_ended, runs_of, summarize, tables
from benchmarks.prompts import EncodedPrompt
from specdec import Generator, ToyModel
from specdec.decoding.result import Result

VOCAB = 12


def successor(context: Sequence[int]) -> list[float]:
    """A law that counts round and round."""
    return [float(token == (context[-1] + 1) % VOCAB) for token in range(VOCAB)]


def test_figures_of_a_text_that_copies_and_of_one_that_does_not() -> None:
    prompts = [EncodedPrompt("round", [*range(VOCAB), 0]), EncodedPrompt("once", [0])]
    lookup, plain = (
        decode(Generator(ToyModel(successor, VOCAB), proposer=name), name, prompts, max_new_tokens=8)
        for name in ("prompt_lookup:num_tokens=3", "autoregressive")
    )
    runs = runs_of("lookup", prompts, lookup, plain)
    # Three copied tokens and the model's own at each step, of four nodes; and a token at each step, of one.
    assert runs == [Run("lookup", 0, "round", 8, 2, 8, True), Run("lookup", 1, "once", 8, 8, 8, True)]
    [row] = summarize(runs)
    assert row.by_category == {"round": 4.0, "once": 1.0}
    assert (row.tokens_per_step, row.nodes_per_step) == (1.6, 1.6)
    assert (row.num_texts, row.num_different) == (2, 0)


def test_a_category_is_all_of_its_tokens_over_all_of_its_steps() -> None:
    runs = [Run("a", 0, "qa", 8, 8, 8, True), Run("a", 1, "qa", 8, 2, 32, False), Run("b", 0, "qa", 8, 4, 4, True)]
    first, second = rows = summarize(runs)
    assert (first.by_category, first.nodes_per_step, first.num_different) == ({"qa": 1.6}, 4.0, 1)
    assert (second.by_category, second.nodes_per_step, second.num_different) == ({"qa": 2.0}, 1.0, 0)
    assert [part.splitlines() for part in tables(rows, ["qa", "qa"])] == [
        [
            "| tokens per step | qa (2) | overall |",
            "| --- | --- | --- |",
            "| `a` | 1.60 | 1.60 |",
            "| `b` | 2.00 | 2.00 |",
        ],
        [
            "| strategy | nodes per step | texts that differ |",
            "| --- | --- | --- |",
            "| `a` | 4.0 | 1 of 2 |",
            "| `b` | 1.0 | 0 of 1 |",
        ],
    ]


@pytest.mark.parametrize("end", [7, [7, 9]])
def test_texts_that_go_on_behind_their_end_are_counted(end: Any) -> None:
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=end))
    texts = [(1, 7, 2), (1, 2, 7), (1, 2, 3)]
    assert num_ended([SimpleNamespace(token_ids=text) for text in texts], model) == 1  # type: ignore[misc]  # like one


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> int:
    sizes = ["--dtype", "float32", "--threads", "1", "--num-prompts", "3", "--max-new-tokens", "8"]
    proposers = ["--proposer", "prompt_lookup", "--proposer", "jacobi"]
    monkeypatch.setattr(sys, "argv", ["tokens", *sizes, *proposers, "--out", str(out), *more])
    return tokens.main()


def test_a_small_run_is_written_and_the_same_for_every_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, tmp_path / "three") == 0
    report, found = (tmp_path / "three.md").read_text(), json.loads((tmp_path / "three.json").read_text())
    assert report in capsys.readouterr().out
    assert str(tmp_path) not in report
    assert [row["proposer"] for row in found["rows"]] == ["prompt_lookup", "jacobi"]
    assert [run["num_tokens"] for run in found["runs"]] == [8] * 6
    assert all(row["num_different"] == 0 for row in found["rows"])
    assert run_main(monkeypatch, tmp_path / "one", "--max-batch-size", "1") == 0
    assert json.loads((tmp_path / "one.json").read_text())["runs"] == found["runs"]


@pytest.mark.parametrize(("numerics", "code"), [("exact", 1), ("fast", 0)])
def test_a_text_that_differs_is_counted_and_a_failure_in_exact_numerics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numerics: str, code: int
) -> None:
    def spoilt(generator: Generator, name: str, prompts: Any, max_new_tokens: int) -> list[Result]:
        first, *others = decode(generator, name, prompts, max_new_tokens)
        tokens = first.token_ids
        return [replace(first, token_ids=(*tokens[:-1], tokens[-1] + 1)) if name == "jacobi" else first, *others]

    monkeypatch.setattr(tokens, "decode", spoilt)
    assert run_main(monkeypatch, tmp_path / "spoilt", "--numerics", numerics) == code
    rows = json.loads((tmp_path / "spoilt.json").read_text())["rows"]
    assert [row["num_different"] for row in rows] == [0, 1]
    assert "| `jacobi` |" in (tmp_path / "spoilt.md").read_text()


def test_an_unknown_strategy_ends_it_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="jacoby"):
        run_main(monkeypatch, tmp_path / "none", "--proposer", "jacoby")
    assert not list(tmp_path.iterdir())
