"""The commands that show decoding: what they print, what they write, and how they refuse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from specdec import Generator
from specdec.apps.cli.model_choice import ModelChoice

PROMPT = "1. Multiply 651 by"
LOOKAHEAD = "lookahead:N=4,W=5,G=2"
FEW = ("--max-new-tokens", "12")


def plain(built_in: tuple[Any, Any], max_new_tokens: int) -> Any:
    return Generator(*built_in, proposer="autoregressive").generate(PROMPT, max_new_tokens=max_new_tokens, seed=0)


def mask_rows(out: str) -> list[tuple[str, int, str, int]]:
    """Mark, depth, roles and the number of blocks of each node's row."""
    found = re.findall(r"^([✓ ]) *\d+ \+(\d+) +([RCPS]+) .*?([█· ]+)$", out, flags=re.MULTILINE)
    return [(mark, int(depth), roles, cells.count("█")) for mark, depth, roles, cells in found]


def test_mask_draws_a_step_of_lookahead_in_80_columns(run: Any) -> None:
    code, out, err = run("mask", "--proposer", LOOKAHEAD)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(cell_len, out.splitlines())) <= 80
    found = mask_rows(out)
    assert f"\n{len(found)} nodes after a prefix of " in out
    # Two cells each: the prefix, every ancestor, the root included, and the node itself.
    assert [num_blocks for *_, num_blocks in found] == [2 + 2 * (depth + 1) for _, depth, _, _ in found]
    assert {roles for _, _, roles, _ in found} >= {"R", "C", "P", "S"}
    assert any(mark == "✓" for mark, *_ in found)
    assert all(f"██ {role}" in out for role in ("root", "candidate", "probe", "support"))


def test_mask_leaves_out_the_middle_of_a_tree_that_is_too_wide(run: Any) -> None:
    code, out, _ = run("mask", "--proposer", "lookahead:N=5,W=15,G=15", "--step", "12")
    assert code == 0
    assert max(map(cell_len, out.splitlines())) <= 80
    num_nodes, num_left_out = (int(re.findall(rf"(\d+) nodes {which}", out)[0]) for which in ("after", "more"))
    assert len(mask_rows(out)) == num_nodes - num_left_out < num_nodes


def test_mask_writes_a_figure(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "mask.svg"
    assert run("mask", "--proposer", "jacobi:n=3", "--prompt", PROMPT, "--step", "2", *FEW, "--out", str(file))[0] == 0
    assert "<svg" in file.read_text(encoding="utf-8")


def test_trace_shows_each_step_and_writes_json_and_a_page(run: Any, built_in: tuple[Any, Any], tmp_path: Path) -> None:
    files = [tmp_path / "trace.json", tmp_path / "trace.html"]
    arguments = ("trace", PROMPT, "--proposer", LOOKAHEAD, *FEW)
    code, out, err = run(*arguments, "--json", str(files[0]), "--html", str(files[1]))
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    traced = json.loads(files[0].read_text(encoding="utf-8"))
    expected = plain(built_in, 12)
    assert [token for step in traced["steps"] for token in step["tokens"]] == list(expected.token_ids)
    assert traced["text"] == expected.text
    assert re.findall(r"^step (\d+) ", out, re.M) == [str(k) for k in range(1, len(traced["steps"]) + 1)]
    # Every accepted token has its mark in the tree and among the committed ones.
    assert out.count("✓") == 2 * sum(len(step["path"]) - 1 for step in traced["steps"]) > 0
    assert f"12 tokens in {len(traced['steps'])} steps" in out
    assert expected.text.split("\n")[-1] in out
    assert "<section" in files[1].read_text(encoding="utf-8")
    left_out = [int(number) for number in re.findall(r"and (\d+) probe and support nodes, not shown", out)]
    never = [sum("candidate" not in node["roles"] for node in step["nodes"][1:]) for step in traced["steps"]]
    assert left_out == [number for number in never if number]
    assert "not shown" not in run(*arguments, "--all-nodes")[1]


@pytest.mark.parametrize("command", [("mask",), ("trace",), ("race", "jacobi", "jacobi")])
def test_what_can_be_refused_early_is_checked_once(
    run: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    checked, check = [], ModelChoice.check_early

    def noting(choice: ModelChoice, *strategies: str, **given: Any) -> None:
        checked.append(strategies)
        check(choice, *strategies, **given)

    monkeypatch.setattr(ModelChoice, "check_early", noting)
    run(*command, "--max-new-tokens", "8", "--model", "demo")
    assert len(checked) == 1


def test_trace_keeps_what_would_drive_a_terminal_out_of_it(run: Any) -> None:
    _, out, _ = run("trace", "a\x1b[31m\nb", "--proposer", "autoregressive", "--max-new-tokens", "1")
    assert "\x1b" not in out
    assert "text: a [31m⏎b" in out


def test_race_prints_figures_and_whether_the_texts_are_identical(run: Any, built_in: tuple[Any, Any]) -> None:
    code, out, err = run("race", "prompt_lookup", "jacobi:n=3", "--prompt", PROMPT, *FEW)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    first, second, outcome, caution, numerics, verdict = out.splitlines()
    assert first.startswith("prompt_lookup: 12 tokens in ")
    assert second.startswith("jacobi:n=3: 12 tokens in ")
    seconds = {line.split(": 12")[0]: float(re.findall(r"([\d.]+) s,", line)[0]) for line in (first, second)}
    quick = outcome.partition(" finished first")[0]
    assert seconds[quick] == min(seconds.values())
    assert float(re.findall(r"([\d.]+) times as fast", outcome)[0]) >= 1
    assert caution == "a single race proves nothing: `specdec compare` measures"
    assert numerics == "numerics: exact, bit-exact"
    assert verdict == "the texts are identical"


def test_race_with_plain_decoding_says_what_it_is_raced_in(run: Any) -> None:
    race = ("race", "autoregressive", "jacobi:n=2", "--prompt", PROMPT, "--max-new-tokens", "4", "--numerics")
    code, out, _ = run(*race, "exact")
    assert code == 0
    assert "\nexact numerics may slow plain decoding down: `specdec compare` measures against it in fast ones\n" in out
    _, out, _ = run(*race, "fast")
    assert "\nnumerics: fast, not bit-exact: " in out
    assert "slow plain decoding down" not in out


def test_race_of_a_strategy_with_itself_tells_the_lanes_apart(run: Any) -> None:
    _, out, _ = run("race", "jacobi:n=2", "jacobi:n=2", "--prompt", PROMPT, "--max-new-tokens", "4")
    assert [line.partition(":")[0] for line in out.splitlines()[:2]] == ["jacobi", "jacobi"]
    assert "jacobi:n=2 (left): " in out
    assert "jacobi:n=2 (right): " in out


def test_race_fills_two_panels_in_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "20")
    code, out, _ = run("race", "prompt_lookup", "jacobi:n=3", "--prompt", PROMPT, *FEW)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out)
    assert code == 0
    assert re.search(r"╭─+ prompt_lookup ─+╮╭─+ jacobi:n=3 ─+╮", shown)
    assert shown.count("done: 12 tokens, ") >= 2


def test_race_says_where_texts_differ_and_exits_with_1(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.apps.pictures.race.first_difference", lambda _: 4)
    code, out, _ = run("race", "prompt_lookup", "jacobi:n=3", "--prompt", PROMPT, "--max-new-tokens", "4")
    assert (code, out.splitlines()[-1]) == (1, "the texts DIFFER, from new token 5 on")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("mask", "--prompt", ""), "the prompt is empty"),
        (("mask", "--out", "mask.pdf"), "mask.pdf: a figure's name ends in .svg or .png"),
        (("mask", "--out", "no/such/mask.svg"), "no/such/mask.svg can't be written"),
        (("mask", "--proposer", "autoregressive", "--step", "9", "--max-new-tokens", "3"), "there is no step 9: decod"),
        (("mask", "--model", "/no/such [model]"), "can't load '/no/such [model]'"),
        (("trace", ""), "the prompt is empty"),
        (("trace", PROMPT, "--proposer", "lookahead:N=1"), "options of proposer 'lookahead' refused: N=1"),
        (("trace", PROMPT, "--json", "/dev/full", "--max-new-tokens", "2"), "/dev/full can't be written"),
        (("trace", PROMPT, "--temperature", "-1"), "--temperature '-1': it must be at least 0"),
        (("trace", PROMPT, "--max-new-tokens", "1000000"), "the prompt has "),
        (("race", "jacobi", "jacobi:n=3", "--prompt", ""), "the prompt is empty"),
        (("race", "jacobi", "jacobi:n=3", "--max-new-tokens", "1000000"), "the prompt has "),
    ],
)
def test_what_is_refused_exits_with_2_and_one_line(run: Any, arguments: tuple[str, ...], fault: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {fault}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("mask", "--step", "0"), ("race", "jacobi"), ("trace", "--seed", "x")])
def test_wrong_usage_exits_with_2(run: Any, arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[:2] == (2, "")
