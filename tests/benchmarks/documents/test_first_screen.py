"""README's first screen: table, sentences and chart have the figures of the result files, by one statistic."""

import json
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
    block,
    chart,
    first_rows,
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
    assert block(load()[0]) == MADE


def test_the_table_has_the_speeds_of_the_single_runs_and_their_ratios() -> None:
    data = json.loads(RESULTS[0].read_text(encoding="utf-8"))
    speeds, rows, table = speeds_of_runs(data), {row["contender"]: row for row in data["rows"]}, table_of(MADE)
    shown = [shown for _, shown in first_rows(data)]
    assert len(table) == 4
    for (speed, ratio), each in zip(table.values(), shown, strict=True):
        assert speed == f"{speeds[each.contender]:.1f}"
        assert ratio == f"{rows[each.contender]['by_repeat']['median']:.1f}"


def test_no_other_engine_without_a_head_is_faster_than_the_one_that_is_shown() -> None:
    data = load()[0]
    speeds = {name: speed for name, speed in picture.speeds(data).items() if not name.startswith("specdec:")}
    shown = [shown.contender for _, shown in first_rows(data)][1]
    assert speeds[shown] == max(speed for name, speed in speeds.items() if first_screen.HEAD not in name)


def test_the_chart_has_the_speeds_of_the_single_runs() -> None:
    figures = figures_of(first_screen.CHART)
    assert list(figures) == ["float32", "bfloat16"]
    for panel, path in zip(figures.values(), RESULTS, strict=True):
        speeds = speeds_of_runs(json.loads(path.read_text(encoding="utf-8")))
        assert panel == {shown.name: f"{speeds[shown.contender]:.1f}" for shown in shown_in(load())}


def test_both_pages_show_that_chart() -> None:
    pages = [README, README.parent / "docs" / "index.md"]
    shown = [re.search(r'(?:\]\(|src=")([^)"]*speed\.png)', page.read_text(encoding="utf-8")) for page in pages]
    charts = [(page.parent / found[1]).resolve() for page, found in zip(pages, shown, strict=True) if found]
    assert charts == [first_screen.CHART.resolve()] * 2


def test_the_first_sentence_has_the_row_of_default_settings() -> None:
    ratio = table_of(MADE)["specdec, default settings"][1]
    assert MADE.startswith(f"**{ratio} times as fast as transformers' `generate`, the same text.**\n")
    data = deepcopy(load()[0])
    next(row for row in data["rows"] if row["contender"] == first_screen.EXACT.contender)["num_different"] = 2
    assert "`generate`, another text in 2 of 14.**" in block(data)


def test_another_result_makes_another_block_and_another_chart(tmp_path: Path) -> None:
    results = deepcopy(load())
    row = next(row for row in results[1]["rows"] if row["contender"] == "vllm")
    row["tokens_per_second"] *= 2
    default = next(row for row in results[0]["rows"] if row["contender"] == first_screen.EXACT.contender)
    default["tokens_per_second"] *= 2
    assert block(results[0]) != MADE
    picture.save(*chart(results), first_screen.TITLE, first_screen.CAPTION, tmp_path / "other.png")
    drawn, shown = figures_of(tmp_path / "other.png"), figures_of(first_screen.CHART)
    changed = {name for name in shown["float32"] if drawn["float32"][name] != shown["float32"][name]}
    assert changed == {first_screen.EXACT.name}
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
