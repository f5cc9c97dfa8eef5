"""The commands that compare: their tables, files and exit codes."""

import csv
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec import hookimpl
from specdec.apps.cli import evaluate
from specdec.apps.cli.evaluate import _write_report
from specdec.apps.comparison import report
from specdec.verifiers.base import Verdict, Verifier
from specdec.verifiers.match import MatchVerifier
from tests.support.entry_points import FakeEntryPoint

FEW = ("--max-new-tokens", "8", "--per-category", "2", "--repeats", "1")


def test_compare_prints_both_tables_and_the_verdict(run: Any) -> None:
    code, out, err = run("compare", "jacobi:n=2", "look=prompt_lookup", *FEW)
    assert code == 0
    assert err.splitlines()[:3] == ["loading demo", "trying the model out", "32 runs: 8 prompts, 4 rows, 1 repeat"]
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["strategy", "tokens/s", "tokens/step"]
    assert [line.split()[0] for line in lines[1:4]] == ["jacobi:n=2", "look", "autoregressive"]
    assert lines[4].startswith("autoregressive (exact)")
    assert [line.split()[-1] for line in lines[1:5]] == ["yes", "yes", "–", "–"]
    assert lines[6].split()[:3] == ["ms", "per", "step"]
    assert "All 16 texts are plain decoding's, token for token." in out
    assert "\nNumerics: exact, bit-exact. Speed-ups are over autoregressive, plain decoding in fast numerics;" in out
    assert "No winner: " in out or "Fastest: " in out or " times as fast as plain decoding. It is " in out


def test_compare_in_fast_numerics_runs_plain_decoding_once_and_says_so(run: Any) -> None:
    code, out, _ = run("compare", "jacobi:n=2", *FEW, "--numerics", "fast")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["jacobi:n=2", "autoregressive"]
    assert "(exact)" not in out
    assert "\nNumerics: fast, not bit-exact: " in out


def test_compare_writes_json_csv_and_a_report(run: Any, tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "html", "jsonl")}
    outputs = ("--csv", str(files["csv"]), "--report", str(files["html"]), "--run", str(files["jsonl"]))
    code, out, err = run("compare", "jacobi", *FEW, "--json", *outputs)
    assert code == 0
    assert err.splitlines()[-1] == "measuring the cost of passes for the report"
    told = json.loads(out)
    assert [entry["strategy"] for entry in told["strategies"]] == [
        "jacobi",
        "autoregressive",
        "autoregressive (exact)",
    ]
    assert told["plan"]["numerics"] == {"jacobi": "exact", "autoregressive": "fast", "autoregressive (exact)": "exact"}
    assert told["plan"]["reference"] == "autoregressive (exact)"
    assert told["num_prompts"] == 8
    assert len(list(csv.DictReader(files["csv"].read_text().splitlines()))) == 24
    assert "<html" in files["html"].read_text(encoding="utf-8")
    again = tmp_path / "again.jsonl"
    again.write_text(files["jsonl"].read_text())
    code, out, _ = run("report", str(files["jsonl"]), str(again), "--json")
    assert code == 0
    assert json.loads(out)["plan"]["repeats"] == 2


def test_ctrl_c_while_costs_are_measured_leaves_their_figure_out_of_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def costs() -> None:
        raise KeyboardInterrupt

    written: list[Any] = []
    monkeypatch.setattr(report, "write_report", lambda *given, **options: written.append((given, options["costs"])))
    complete: Any = SimpleNamespace(is_complete=True)
    session: Any = SimpleNamespace(costs=costs, tokenizer=None)
    _write_report(tmp_path / "report.html", [complete], session)
    assert written.pop() == ((tmp_path / "report.html", [complete]), None)
    monkeypatch.setattr(evaluate, "status", None)  # nothing is measured after Ctrl-C, and nothing said to be
    _write_report(tmp_path / "report.html", [stopped := SimpleNamespace(is_complete=False)], session)
    assert written == [((tmp_path / "report.html", [stopped]), None)]


def test_several_temperatures_have_their_own_tables_and_files(run: Any, tmp_path: Path) -> None:
    files = ("--run", str(tmp_path / "runs.jsonl"), "--csv", str(tmp_path / "runs.csv"))
    temperatures = ("--temperature", "0", "--temperature", "0.8")
    few = ("--max-new-tokens", "4", "--per-category", "1", "--repeats", "1", "--numerics", "fast")
    code, out, _ = run("compare", "jacobi:n=2", *few, *temperatures, *files)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines.count(["category", "jacobi:n=2"]) == 2
    for name in ("code", "documentation", "dialogue", "arithmetic", "mean", "overall"):
        assert sum(line[:1] == [name] for line in lines) == 2
    assert [line for line in out.splitlines() if line.startswith("temperature")] == ["temperature 0", "temperature 0.8"]
    names = {"runs-t0.jsonl", "runs-t0.csv", "runs-t0.8.jsonl", "runs-t0.8.csv"}
    assert {path.name for path in tmp_path.iterdir()} == names
    code, out, _ = run("compare", "jacobi:n=2", *few, *temperatures, *files, "--json")
    assert code == 0
    plans = [json.loads(line)["plan"] for line in out.splitlines()]
    assert [plan["settings"].get("temperature", 0) for plan in plans] == [0, 0.8]


def test_strategies_are_rows_by_category_where_the_terminal_is_wide_enough(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    _, out, _ = run("compare", "jacobi:n=2", *FEW)
    lines = [line.split() for line in out.splitlines()]
    (first,) = [index for index, line in enumerate(lines) if line[:2] == ["strategy", "code"]]
    assert lines[first][1:5] == ["code", "documentation", "dialogue", "arithmetic"]
    assert [lines[first + 1][0], *lines[first + 2][:2]] == ["jacobi:n=2", "autoregressive", "(exact)"]
    assert len(lines[first + 1]) == 1 + 4 + 1 + 3


def test_prompts_with_spec_benchs_categories_have_its_own_table(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "Once", "category": "writing"}, {"prompt": "Then", "category": "stem"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = run("compare", "jacobi:n=2", *FEW, "--prompts", str(prompts), "--numerics", "fast")
    assert code == 0
    lines_of = {line.split("  ")[0]: line.split("  ")[1:] for line in out.splitlines()}
    cells = [cell.strip() for cell in lines_of["multi-turn conversation"] if cell.strip()]
    assert cells == [cell.strip() for cell in lines_of["overall"] if cell.strip()]  # the one task is all
    assert cells[1] == "1.00 1.00×"
    assert "Mean accepted tokens: all tokens over all steps." in " ".join(out.split())
    _, out, _ = run("compare", "jacobi:n=2", *FEW, "--category", "code", "--numerics", "fast")
    assert "Mean accepted tokens" not in out
    assert "overall" not in out  # nor a table of one category


def test_tune_prints_a_string_for_proposer(run: Any, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    few = ("--max-new-tokens", "8", "--per-category", "1", "--minutes", "0.02", "--plot", str(plot))
    code, out, _ = run("tune", "jacobi:noise_aware=false", "--option", "n=1,2,3", *few)
    assert code == 0
    (named,) = [line for line in out.splitlines() if line.startswith(("best: ", "fastest finalist: "))]
    assert named.partition("--proposer ")[2].split()[0] in {f"jacobi:noise_aware=false,n={n}" for n in (1, 2, 3)}
    assert re.search(r" times plain decoding$", named)
    assert named.startswith("best: ") != ("No setting is certainly faster than plain decoding" in out)
    assert re.search(r"\d settings? screened", out)
    assert "Numerics: exact, bit-exact. " in out
    assert "<svg" in plot.read_text(encoding="utf-8")


class _Wrong(MatchVerifier):
    """Match, but for token id 7 in place of the last token of each step that ends at a fifth position."""

    def verify(self, tree: Any, target: Any, randomness: Any) -> Verdict:
        verdict = super().verify(tree, target, randomness)
        is_fifth = (target.position(0) + len(verdict.tokens) - 1) % 5 == 0
        return Verdict(verdict.path, (*verdict.tokens[:-1], 7)) if is_fifth else verdict


@hookimpl
def specdec_verifiers() -> dict[str, type[Verifier]]:
    return {"wrong": _Wrong}


def test_a_wrong_token_is_told_with_its_place_and_in_the_exit_code(run: Any, monkeypatch: Any) -> None:
    entry = FakeEntryPoint("wrong", lambda: SimpleNamespace(specdec_verifiers=specdec_verifiers))
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [entry])
    code, out, _ = run("compare", "jacobi", "--verifier", "wrong", *FEW, "--category", "arithmetic")
    assert code == 1
    assert " of 2 texts " in out
    assert " NOT plain decoding's." in out
    assert "jacobi, prompt 'sheet 1' (arithmetic), repeat 1: new token " in out
    assert " (7), plain decoding's is " in out
    assert "; defect: the model scores the token " in out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("compare", "jacobi", "jacobi"), "two strategies are called 'jacobi'"),
        (("compare", "jacobi", "--prompts", "{empty}"), "the file has no prompts"),
        (("compare", "jacobi", "--prompts", "{broken}"), "line 2: not JSON"),
        (("compare", "jacobi", "--category", "verse"), "category 'verse' is unknown"),
        (
            ("compare", "jacobi", "--report", "out.pdf"),
            "the report out.pdf is a web page: give a file that ends in .html",
        ),
        (("compare", "jacobi", "--report", "{pipe}", "--csv", "/nowhere/out.csv"), "/nowhere/out.csv can't be written"),
        (("compare", "jacobi", "--report", "/dev/stdout", "--csv", "/nowhere/out.csv"), "/nowhere/out.csv can't be"),
        (("compare", "jacobi", "--report", "{pipe}.HTML", "--csv", "/nowhere/out.csv"), "/nowhere/out.csv can't be"),
        (("compare", "jacobi", "--run", "{broken}"), "is not a run file"),
        (("compare", "autoregressive=jacobi"), "'autoregressive' is plain decoding's"),
        (("tune", "autoregressive"), "autoregressive declares no values to tune"),
        (("tune", "jacobi", "--option", "n"), "not of the form NAME=VALUE"),
        (("tune", "jacobi", "--plot", "/tmp/x.gif"), "ends in .svg or .png"),
        (("report", "{broken}", "{broken}"), "a run file is listed twice"),
        (("compare", "jacobi", "--seed", "-1"), "seed"),
        (("tune", "jacobi", "--minutes", "inf"), "and a finite"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run: Any, tmp_path: Path, arguments: Any, fault: str) -> None:
    names = {"empty": tmp_path / "empty.jsonl", "broken": tmp_path / "broken.jsonl", "pipe": tmp_path / "pipe"}
    os.mkfifo(names["pipe"])
    names["empty"].write_text("")
    names["broken"].write_text('{"prompt": "good"}\n{')
    code, out, err = run(*(argument.format(**names) for argument in arguments))
    assert (code, out) == (2, "")
    assert fault in err
    assert len([line for line in err.splitlines() if line not in {"loading demo", "trying the model out"}]) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "jacobi", "--repeats", "1"),
        ("tune", "jacobi", "--option", "n=2", "--minutes", "0.001"),
    ],
)
def test_too_few_prompts_for_an_interval_are_said_before_anything_is_measured(run: Any, command: Any) -> None:
    few = "prompts: fewer than 6 give no interval, so nothing will be called faster; --prompts, --category and "
    given = *command, "--max-new-tokens", "2", "--numerics", "fast", "--model", "demo"
    _, _, err = run(*given, "--per-category", "1")
    assert err.startswith(f"4 {few}")
    assert err.index(few) < err.index("loading demo")
    assert few not in run(*given, "--category", "code")[2]


def test_a_search_says_how_many_prompts_its_comparison_used(run: Any) -> None:
    given = "tune", "jacobi", "--option", "n=2", "--minutes", "0.001", "--max-new-tokens", "2", "--model", "demo"
    _, out, _ = run(*given, "--numerics", "fast")
    assert "the comparison used 6 of 24 prompts, spread evenly: more --minutes use more\n" in out
    assert "the comparison used" not in run(*given, "--numerics", "fast", "--category", "code")[1]
