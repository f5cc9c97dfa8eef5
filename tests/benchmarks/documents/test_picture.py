"""The chart of speeds: what its bars come to, and that nothing in it lies over anything else."""

import json
import struct
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks.documents import picture
from benchmarks.documents.picture import Bar, bars, draw, ratios, speeds
from specdec.apps.comparison.figures.axes import COLOURS, look


def result(dtype: str = "float32", base: float = 20.0) -> dict[str, Any]:
    rows = [
        {"contender": "base", "tokens_per_second": base},
        {"contender": "specdec:auto", "tokens_per_second": 30.0},
    ]
    return {"model": f"a model, 7 million parameters, {dtype}", "rows": rows}


def known(*names: str) -> list[dict[str, Any]]:
    return [{"rows": [{"contender": name, "tokens_per_second": 1.0} for name in names]}]


def test_a_contenders_speed_is_its_rows() -> None:
    assert speeds(result()) == {"base": 20.0, "specdec:auto": 30.0}


def test_ratios_are_over_the_baseline_in_the_same_repeats() -> None:
    """The machine is half as fast in the second repeat, where the second group was measured."""
    seconds = {"base": {0: 10.0, 1: 20.0}, "first": {0: 5.0}, "second": {1: 5.0}}
    runs = [
        {"contender": name, "repeat": repeat, "tokens": 100, "seconds": spent}
        for name, repeats in seconds.items()
        for repeat, spent in repeats.items()
    ]
    rows = [{"contender": "base", "tokens_per_second": 7.5}]
    rows += [{"contender": name, "tokens_per_second": 20.0} for name in ("first", "second")]
    assert ratios({"rows": rows, "runs": runs}, "base") == {"base": 1.0, "first": 2.0, "second": 4.0}


def test_labels_name_contenders_that_have_equals_signs_too() -> None:
    results = known("specdec:a", "specdec:a:n=2", "transformers")
    made = bars(["specdec:a:n=2=two=2", "transformers=plain", "specdec:a=one"], results)
    assert [(bar.name, bar.is_ours) for bar in made] == [("two=2", True), ("plain", False), ("one", True)]
    with pytest.raises(SystemExit, match=r"--label vllm=x: it begins with none .* specdec:a, specdec:a:n=2, trans"):
        bars(["vllm=x"], results)


def test_a_contender_that_one_result_lacks_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"--label b=x: it begins with none of the contenders: a"):
        bars(["b=x"], [*known("a", "b"), *known("a")])


def test_bars_are_as_long_as_they_should_be_and_ours_are_blue() -> None:
    shown = bars(["base=Base", "specdec:auto=Ours"], [result(), result("bfloat16", 25.0)])
    with look(picture.SETTINGS):
        first, second = draw(shown, ["float32", "bfloat16"], "Speed", "").axes
    assert [bar.get_width() for bar in first.patches] == [20.0, 30.0]
    assert [bar.get_width() for bar in second.patches] == [25.0, 30.0]
    assert first.get_xlim() == second.get_xlim()  # so that bars of both panels can be compared
    assert first.patches[1].get_facecolor() != first.patches[0].get_facecolor()
    assert COLOURS[0] == "#0072B2"
    assert first.patches[1].get_facecolor()[:3] == (0, 0x72 / 255, 0xB2 / 255)
    assert [label.get_text() for label in first.get_yticklabels()] == ["Base", "Ours"]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    "shown",
    [
        [Bar("x", True, (1000.0,))],
        [Bar(f"a name of some length, {n}", n % 2 == 0, (n + 1.0, n + 2.0)) for n in range(12)],
        [Bar("the widest name that is let through", False, (1234.5, 999.9)), Bar("y", True, (2, 3))],
    ],
    ids=["one", "many", "wide"],
)
def test_no_text_lies_over_another_or_a_bar_or_outside(shown: list[Bar]) -> None:
    panels = ["float32", "bfloat16"][: len(shown[0].speeds)]
    with look(picture.SETTINGS):
        figure = draw(shown, panels, "Tokens per second on a machine", "a model, two cores, a day")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        texts = [*figure.texts]
        for axes in figure.axes:
            ticks = [each for each in axes.get_xticklabels() if each.get_position()[0] <= axes.get_xlim()[1]]
            texts += [*ticks, *axes.get_yticklabels(), *axes.texts, axes._left_title]
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
        drawn = [bar.get_window_extent(renderer) for axes in figure.axes for bar in axes.patches]
    whole = figure.bbox
    for name, box in boxes:
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, name
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1, name
    for (name, one), (other, two) in combinations(boxes, 2):
        assert not one.overlaps(two), (name, other)
    assert not any(box.overlaps(bar) for _, box in boxes for bar in drawn)


def test_a_text_that_is_too_wide_is_refused() -> None:
    [bar] = bars(["base=Base"], [result()])
    with look(picture.SETTINGS):
        for shown, title, caption in (
            ([bar], "t" * 80, ""),
            ([bar], "", "c" * 120),
            ([Bar("n" * 60, True, bar.speeds)], "", ""),
        ):
            with pytest.raises(SystemExit, match="too wide for the picture"):
                draw(shown, ["float32"], title, caption)


def test_a_picture_is_a_png_that_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "result.json"
    given.write_text(json.dumps(result()))
    labels = ["--label", "specdec:auto=specdec", "--label", "base=plain"]
    written = []
    for out in (tmp_path / "docs" / "one.png", tmp_path / "docs" / "two.png"):
        monkeypatch.setattr(sys, "argv", ["picture", str(given), "--out", str(out), *labels])
        picture.main()
        assert capsys.readouterr().out.strip() == str(out)
        written.append(out.read_bytes())
    assert written[0] == written[1]
    assert struct.unpack(">4sII", written[0][12:24])[:2] == (b"IHDR", 1400)
