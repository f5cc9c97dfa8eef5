"""README's first screen: table, sentences and chart have the figures of the result files, by one statistic."""

import json
import re
import statistics
import struct
import zlib
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_screen, picture
from benchmarks.first_screen import BEGIN, END, README, RESULTS, SHOWN, block, chart, load, with_block

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


def embedded(png: bytes) -> Any:
    """The figures in a PNG's text chunk, read without an imaging library."""
    place = 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        content = png[place + 8 : place + 8 + size]
        assert zlib.crc32(kind + content) == struct.unpack(">I", png[place + 8 + size : place + 12 + size])[0]
        if kind == b"tEXt" and content.startswith(b"Figures\0"):
            return json.loads(content.partition(b"\0")[2])
        place += 12 + size
    return None


def table_of(page: str) -> dict[str, list[str]]:
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {name: cells for name, *cells in rows[2:]}


def test_readme_has_the_block_that_the_results_make() -> None:
    assert block(load()) == MADE


def test_the_table_has_the_speeds_of_the_single_runs_and_their_ratios() -> None:
    table = table_of(MADE)
    assert list(table) == [shown.name for shown in SHOWN]
    for place, path in enumerate(RESULTS):
        speeds = speeds_of_runs(json.loads(path.read_text(encoding="utf-8")))
        for shown in SHOWN:
            speed, ratio = table[shown.name][2 * place : 2 * place + 2]
            assert speed == f"{speeds[shown.contender]:.1f}"
            assert ratio == f"{speeds[shown.contender] / speeds['transformers']:.1f}"


def test_the_chart_has_the_figures_of_the_table_in_its_order() -> None:
    figures = embedded(first_screen.CHART.read_bytes())
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
    table = table_of(MADE)
    for place in range(2):
        whole = float(table["specdec on OpenVINO, fast numerics"][2 * place + 1])
        assert said[place] * said[place + 2] == pytest.approx(whole, rel=0.05)


def test_another_result_makes_another_block_and_another_chart(tmp_path: Path) -> None:
    results = deepcopy(load())
    row = next(row for row in results[1]["rows"] if row["contender"] == "vllm")
    row["tokens_per_second"] *= 2
    assert block(results) != MADE
    picture.save(*chart(results), first_screen.TITLE, first_screen.CAPTION, tmp_path / "other.png")
    drawn, shown = embedded((tmp_path / "other.png").read_bytes()), embedded(first_screen.CHART.read_bytes())
    assert drawn["float32"] == shown["float32"]
    assert {name for name in shown["bfloat16"] if drawn["bfloat16"][name] != shown["bfloat16"][name]} == {"vLLM"}


def test_a_page_without_markers_is_refused_and_one_with_them_keeps_the_rest() -> None:
    assert with_block(f"a\n{BEGIN}old\n{END}z\n", "new\n") == f"a\n{BEGIN}new\n{END}z\n"
    with pytest.raises(SystemExit, match=r"README\.md has no lines <!-- made by"):
        with_block("a\n", "new\n")
