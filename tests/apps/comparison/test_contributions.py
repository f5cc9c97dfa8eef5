"""Who earned what in a merge: the figures of a comparison, its JSON, table and pictures, against sums done by hand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specdec import ToyModel, compare
from specdec.apps.comparison.contributions import CalibrationBin, contributions
from specdec.apps.comparison.figures import merges
from specdec.apps.comparison.report import write_report
from specdec.apps.comparison.runfile import read
from tests.apps.comparison.reported import as_merge, build, letters

STEPS = 6 * 3  # of 6 prompts, three each


def test_a_comparison_adds_up_what_runs_say() -> None:
    comparison = as_merge(build({"fast": 4.0, "slow": 0.5}), "fast")
    assert contributions(comparison.runs_of("slow")) == []
    suffix, recycling = contributions(comparison.runs_of("fast"))
    assert (suffix.source, recycling.source) == ("suffix", "token_recycling")
    assert suffix.by_depth == {1: (6 / STEPS, 6 / STEPS), 20: (6 / STEPS, 6 / STEPS)}
    assert (recycling.nodes_per_step, recycling.tokens_per_step) == pytest.approx((24 / STEPS, 12 / STEPS))
    assert recycling.acceptance_rate == 0.5
    assert recycling.bins == (CalibrationBin(180, 0.25, 0.2), CalibrationBin(12, pytest.approx(0.95), 1.0))
    told = json.loads(json.dumps(comparison.to_json()))["strategies"]
    assert [list(entry["sources"]) for entry in told] == [[], ["suffix", "token_recycling"], []]
    assert told[1]["sources"]["token_recycling"]["calibration"] == [[180, 0.25, 0.2], [12, pytest.approx(0.95), 1.0]]
    assert told[1]["sources"]["suffix"]["by_depth"]["20"] == [6 / STEPS, 6 / STEPS]


def test_the_report_has_a_table_and_two_figures_for_each_merge(tmp_path: Path) -> None:
    comparison = as_merge(build({"fast": 4.0, "slow": 0.5}), "fast")
    write_report(tmp_path / "report.html", [comparison], letters)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    cells = re.findall(r"<th scope=\"row\">token_<wbr>recycling(?:<wbr>)*</th>(.*?)</tr>", page, re.DOTALL)
    assert [re.findall(r"<td>(.*?)</td>", row) for row in cells] == [
        ["1.33", "0.67", "50 %", "50 %", "–", "–", "–"],
    ]
    assert page.count("Contribution per source in fast") == 1
    titles = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert titles[-2:] == ["Contribution per source, by depth", "Predicted probability and observed acceptance"]


def test_the_marks_are_where_the_figures_are() -> None:
    sources = contributions(as_merge(build({"fast": 4.0}), "fast").runs_of("fast"))
    figure, plot = merges.calibration("fast", sources)
    marks = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert [(float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) for mark in marks] == 2 * [
        (0.25, 0.2),
        (pytest.approx(0.95), 1.0),
    ]
    assert [mark.get_markersize() for mark in marks] == 2 * [5.5, 2.5]  # 12 nodes say little
    assert [name for _, _, name in plot.key] == ["suffix, 192 nodes", "token_recycling, 192 nodes"]
    bars = merges.contribution_by_depth("fast", sources)[0].axes[0].patches
    places = [round(bar.get_x() + bar.get_width() / 2) for bar in bars]
    assert places == [1, 1, 12, 12] * 2  # depth 20 is beyond the last bar's
    heights = [bar.get_height() for bar in bars]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 1, 1, 1, 2, 1, 2, 1])


def test_runs_of_a_real_merge_carry_what_its_steps_tell_and_run_files_keep_it(tmp_path: Path) -> None:
    model, settings = ToyModel.random(12, order=2, seed=5, sharpness=2.5), {"max_new_tokens": 60}
    path = tmp_path / "runs.jsonl"
    strategies: dict[str, Any] = {"merge": "suffix+token_recycling", "jacobi": "jacobi"}
    comparison = compare(model, strategies, [[1, 2, 3], [4, 5]], repeats=1, run_file=path, **settings)
    assert contributions(comparison.runs_of("jacobi")) == []
    for own in contributions(comparison.runs_of("merge")):
        runs = comparison.runs_of("merge")
        named = sum(counts[0] for run in runs for counts in run.sources.get(own.source, {}).values())  # a run may rest
        assert own.nodes_per_step == pytest.approx(named / sum(len(run.accepted_lengths) for run in runs))
        assert sum(each.num_nodes for each in own.bins) == sum(
            cell[0] for run in runs for cell in run.calibration.get(own.source, ())
        )
    assert read(path)[1] == comparison.runs
