"""``RESULTS.md`` has the figures of the result files, names the runs that they are from, and stays short."""

import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.documents.first_screen import END
from benchmarks.documents.results import BLOCKS, FOLDER, PAGE, begin

TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))


def written(name: str) -> str:
    return TEXT.partition(begin(name))[2].partition(END)[0]


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_has_the_table_that_the_files_make(name: str) -> None:
    assert written(name) == BLOCKS[name]()


@pytest.mark.parametrize("name", BLOCKS)
def test_every_row_has_a_cell_for_each_heading(name: str) -> None:
    assert len({line.count("|") for line in written(name).splitlines() if line.startswith("|")}) == 1


def test_there_are_six_questions_each_with_one_table_and_the_page_is_short() -> None:
    assert [section.count("<!-- end -->") for section in SECTIONS.values()] == [1] * 6
    assert all(question.endswith("?") for question in SECTIONS)
    assert len(TEXT.splitlines()) <= 160


def test_the_speeds_over_a_round_are_those_of_the_file() -> None:
    runs = json.loads((FOLDER / "serving_float32.json").read_text())["auto, auto-fast, OpenVINO, vLLM"]["runs"]
    row = next(line for line in written("servers").splitlines() if line.startswith("| specdec on OpenVINO, exact |"))
    rounds = zip(runs["openvino 4 streams"], runs["vllm 4 streams"], strict=True)
    over = statistics.median(own["tokens_per_second"] / their["tokens_per_second"] for own, their in rounds)
    assert row.split(" | ")[6] == f"{over:.2f}"


def test_the_figures_of_a_first_sentence_stand_in_its_table() -> None:
    for question, section in SECTIONS.items():
        sentence, _, rest = section.strip().partition("\n\n")
        cells = {float(number) for number in re.findall(r"\d+\.\d+", rest.partition(END)[0])}
        if question == "Is it faster?":
            cells |= set(over_the_fastest_peer())
        for number in re.findall(r"\d\.\d\d", sentence):
            assert float(number) in cells, (question, number)


def over_the_fastest_peer() -> list[float]:
    found = []
    for dtype in ("float32", "bfloat16"):
        rows = json.loads((FOLDER / f"engines_{dtype}.json").read_text())["rows"]
        speeds = {row["contender"]: row["by_repeat"]["median"] for row in rows}  # over the baseline
        peers = {name: speed for name, speed in speeds.items() if not name.startswith("specdec:")}
        without_head = {name: speed for name, speed in peers.items() if "head" not in name and "eagle3" not in name}
        for ours, others in (("auto", without_head), ("auto+eagle3:head=…/smollm2-gpu", peers)):
            for numerics in ("exact", "fast"):
                own = speeds[f"specdec:{ours}+backend=openvino+numerics={numerics}"]
                found.append(round(own / max(others.values()), 2))
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_names_its_commit_and_is_cited(path: Path) -> None:
    recorded = json.loads(path.read_text(encoding="utf-8"))["recorded"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", recorded["date"])
    assert re.fullmatch(r"[0-9a-f]{7,}", recorded["commit"])
    pages = [PAGE, *(PAGE.parent / "notebook").glob("*.md")]
    assert any(path.stem in page.read_text(encoding="utf-8") for page in pages)
