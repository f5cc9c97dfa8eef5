"""README's first screen: table, sentences and chart have the figures of the result files, by one statistic."""

import json
import math
import re
import statistics
import struct
import sys
import zlib
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.documents import first_screen, picture, report_picture
from benchmarks.documents.first_screen import (
    BEGIN,
    END,
    README,
    RESULTS,
    SHOWN,
    block,
    chart,
    load,
    shown_in,
    with_block,
)

demo_screen = pytest.importorskip("benchmarks.documents.demo_screen")  # of pseudo-terminals
PAGE = README.read_text(encoding="utf-8")
MADE = PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)]


def speeds_of_runs(data: dict[str, Any]) -> dict[str, float]:
    """The statistic once more, from the single runs: all tokens over all seconds, the median over repeats."""
    runs: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in data["runs"]:
        runs[run["contender"]][run["repeat"]].append((run["tokens"], run["seconds"]))
    return {
        name: statistics.median(
            sum(tokens for tokens, _ in each) / sum(seconds for _, seconds in each) for each in repeats.values()
        )
        for name, repeats in runs.items()
    }


def text_chunk(png: bytes, key: str) -> str | None:
    """A text chunk of a PNG, read without an imaging library."""
    place = 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        content = png[place + 8 : place + 8 + size]
        assert zlib.crc32(kind + content) == struct.unpack(">I", png[place + 8 + size : place + 12 + size])[0]
        if kind == b"tEXt" and content.startswith(f"{key}\0".encode()):
            return content.partition(b"\0")[2].decode("latin-1")
        place += 12 + size
    return None


def figures_of(chart: Path) -> dict[str, dict[str, str]]:
    found = text_chunk(chart.read_bytes(), "Figures")
    assert found is not None
    figures: dict[str, dict[str, str]] = json.loads(found)
    return figures


def table_of(page: str) -> dict[str, list[str]]:
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {name: cells for name, *cells in rows[2:]}


def test_readme_has_the_block_that_the_results_make() -> None:
    assert block(load()) == MADE


def test_the_table_has_the_speeds_of_the_single_runs_and_their_ratios() -> None:
    table = table_of(MADE)
    measured = shown_in(load())
    assert list(table) == [shown.name for shown in measured]
    assert {shown.contender for shown in SHOWN} - {shown.contender for shown in measured} <= {
        "specdec:autoregressive+numerics=fast"
    }, "which the runs of November lack"
    for place, path in enumerate(RESULTS):
        data = json.loads(path.read_text(encoding="utf-8"))
        speeds, rows = speeds_of_runs(data), {row["contender"]: row for row in data["rows"]}
        for shown in measured:
            speed, ratio = table[shown.name][2 * place : 2 * place + 2]
            assert speed == f"{speeds[shown.contender]:.1f}"
            assert ratio == f"{rows[shown.contender]['by_repeat']['median']:.1f}"


def test_the_chart_has_the_figures_of_the_table_in_its_order() -> None:
    figures = figures_of(first_screen.CHART)
    table = table_of(MADE)
    assert list(figures) == ["float32", "bfloat16"]
    for place, panel in enumerate(figures.values()):
        assert list(panel.items()) == [(name, cells[2 * place]) for name, cells in table.items()]


def test_both_pages_show_that_chart() -> None:
    pages = [README, README.parent / "docs" / "index.md"]
    shown = [re.search(r'(?:\]\(|src=")([^)"]*speed\.png)', page.read_text(encoding="utf-8")) for page in pages]
    charts = [(page.parent / found[1]).resolve() for page, found in zip(pages, shown, strict=True) if found]
    assert charts == [first_screen.CHART.resolve()] * 2


def test_engine_and_drafts_multiply_to_the_whole_speed_up() -> None:
    said = [float(number) for number in re.findall(r"\d+\.\d", MADE.rpartition("|")[2])]
    assert len(said) == 4
    table = table_of(MADE)
    for place in range(2):
        whole = float(table["specdec on OpenVINO, fast numerics"][2 * place + 1])
        assert math.prod(said[place::2]) == pytest.approx(whole, rel=0.09)  # each is rounded to a tenth


def test_the_first_sentence_has_the_rows_of_default_settings_without_and_with_a_head() -> None:
    table = table_of(MADE)
    rows = "specdec on OpenVINO, exact (default)", "specdec on OpenVINO, exact, with a head"
    ratio, headed = (table[row][1] for row in rows)
    engine = table["specdec on OpenVINO, without drafts"][1]
    first, then = re.split(r"(?<=head\.)\n", MADE, maxsplit=1)
    assert first.startswith(f"**{ratio} times as fast as transformers' `generate`, the same text**, with default setti")
    by_engine, by_drafts, in_all = re.findall(r"(\d\.\d) times (?:by|as fast;|in all)", first)
    assert (by_engine, in_all) == (engine, headed)
    assert float(by_drafts) == pytest.approx(float(ratio) / float(engine), abs=0.1)
    assert then.startswith("SmolLM2-135M-Instruct (a 4-bit GGUF file's weights, converted to float) in float32 ")
    results = deepcopy(load())
    next(row for row in results[0]["rows"] if row["contender"] == first_screen.EXACT.contender)["num_different"] = 2
    runs = [run | {"repeat": 0} for run in results[0]["runs"]]
    results[0]["runs"] = runs + [run | {"repeat": 1} for run in runs if run["contender"] == "transformers"]
    made = block(results)
    assert "`generate`, another text in 2 of 14**" in made
    assert "For each dtype one run, interleaved in 2 groups:" in made


def test_another_result_makes_another_block_and_another_chart(tmp_path: Path) -> None:
    results = deepcopy(load())
    row = next(row for row in results[1]["rows"] if row["contender"] == "vllm")
    row["tokens_per_second"] *= 2
    assert block(results) != MADE
    picture.save(*chart(results), first_screen.TITLE, first_screen.CAPTION, tmp_path / "other.png")
    drawn, shown = figures_of(tmp_path / "other.png"), figures_of(first_screen.CHART)
    assert drawn["float32"] == shown["float32"]
    assert {name for name in shown["bfloat16"] if drawn["bfloat16"][name] != shown["bfloat16"][name]} == {"vLLM"}


@pytest.mark.parametrize("picture_file", report_picture.PICTURES)
def test_the_pictures_of_the_report_are_of_readmes_command(picture_file: Path) -> None:
    assert text_chunk(picture_file.read_bytes(), "Command") == report_picture.command()


def test_readmes_command_compares_on_the_model_that_answers() -> None:
    made = report_picture.command()
    assert made.startswith("specdec compare auto ")
    assert "--model smollm2" in made
    assert "--report report.html" in made


def test_the_docs_show_the_demos_screen_of_a_quiet_machine() -> None:
    page = demo_screen.PAGE.read_text(encoding="utf-8")
    shown = page[page.index(demo_screen.BEGIN) : page.index(END)]
    assert "1 of 3: explain" in shown
    assert "On this machine specdec writes the same text " in shown


def test_a_screen_is_what_a_terminal_of_that_size_shows_in_the_end() -> None:
    lines = "import sys; print(*range(30), sep='\\n'); print('a\\rb', 'x' * 25, sys.stdout.isatty())"
    code, shown = demo_screen.run([sys.executable, "-c", f"{lines}; sys.exit(3)"], width=20, height=10)
    assert code == 3
    assert shown.splitlines() == [*map(str, range(30)), f"b {'x' * 18}", "xxxxxxx True"]


def test_a_page_without_markers_is_refused_and_one_with_them_keeps_the_rest() -> None:
    assert with_block(f"a\n{BEGIN}old\n{END}z\n", "new\n") == f"a\n{BEGIN}new\n{END}z\n"
    with pytest.raises(SystemExit, match="the page has no lines <!-- made by"):
        with_block("a\n", "new\n")
