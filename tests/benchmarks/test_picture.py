"""The picture of speeds: what its bars come to, and that nothing in it lies over anything else."""

import json
import struct
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks import picture
from benchmarks.picture import Bar, bars, draw, speeds
from benchmarks.summary import Spread
from specdec.comparison.axes import COLOURS, look

RUNS = [  # contender, prompt, tokens, seconds
    ("base", 0, 10, 1.0),
    ("base", 0, 10, 0.5),
    ("base", 0, 10, 2.0),
    ("base", 1, 30, 1.0),
    ("specdec:auto", 0, 40, 1.0),
    ("specdec:auto", 1, 20, 1.0),
    ("ended", 0, 10, 1.0),
]
SPREADS = {"base": Spread(20.0, 10.0, 15.0, 25.0), "specdec:auto": Spread(30.0, 20.0, 25.0, 35.0)}


def result() -> dict[str, Any]:
    names = ("contender", "prompt", "tokens", "seconds")
    rows = [{"contender": "base"}, {"contender": "specdec:auto"}]
    return {"rows": rows, "runs": [dict(zip(names, run, strict=True)) for run in RUNS]}


def test_a_contenders_speed_is_the_median_over_prompts_of_their_medians() -> None:
    assert speeds(result()) == SPREADS


def test_labels_name_contenders_that_have_equals_signs_too() -> None:
    one = Spread(1.0, 1.0)
    known = {"specdec:a": one, "specdec:a:n=2": one, "transformers": one}
    made = bars(["specdec:a:n=2=two=2", "transformers=plain", "specdec:a=one"], known)
    assert [(bar.name, bar.is_ours) for bar in made] == [("two=2", True), ("plain", False), ("one", True)]
    with pytest.raises(SystemExit, match=r"--label vllm=x: it begins with none .* specdec:a, specdec:a:n=2, trans"):
        bars(["vllm=x"], known)


def test_bars_are_as_long_as_they_should_be_and_ours_are_blue() -> None:
    with look(picture.SETTINGS):
        [axes] = draw(bars(["base=Base", "specdec:auto=Ours"], SPREADS), "Speed", "").axes
    assert [bar.get_width() for bar in axes.patches] == [20.0, 30.0]
    assert axes.patches[1].get_facecolor() != axes.patches[0].get_facecolor()
    assert COLOURS[0] == "#0072B2"
    assert axes.patches[1].get_facecolor()[:3] == (0, 0x72 / 255, 0xB2 / 255)
    assert [tuple(line.get_xdata()) for line in axes.lines] == [(15.0, 25.0)] * 2 + [(25.0, 35.0)] * 2
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Base", "Ours"]


@pytest.mark.parametrize(
    "shown",
    [
        [Bar("x", True, Spread(1000.0, 1000.0))],
        [Bar(f"a name of some length, {n}", n % 2 == 0, Spread(n + 1.0, n, n + 0.5, n + 3.0)) for n in range(12)],
        [
            Bar("the widest name that is let through", False, Spread(1234.5, 1, 1200, 1999)),
            Bar("y", True, Spread(2, 2)),
        ],
    ],
    ids=["one", "many", "wide"],
)
def test_no_text_lies_over_another_or_a_line_or_outside(shown: list[Bar]) -> None:
    with look(picture.SETTINGS):
        figure = draw(shown, "Tokens per second on a machine", "a model, float32, two cores, a day")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        [axes] = figure.axes
        ticks = [each for each in axes.get_xticklabels() if each.get_position()[0] <= axes.get_xlim()[1]]
        labels = [*ticks, *axes.get_yticklabels(), axes.xaxis.label]
        texts = [text for text in (*figure.texts, *axes.texts, *labels) if text.get_text()]
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
        lines = [line.get_window_extent(renderer) for line in axes.lines]
    whole = figure.bbox
    for name, box in boxes:
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, name
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1, name
    for (name, one), (other, two) in combinations(boxes, 2):
        assert not one.overlaps(two), (name, other)
    assert not any(box.overlaps(line) for _, box in boxes for line in lines)


def test_a_text_that_is_too_wide_is_refused() -> None:
    [bar] = bars(["base=Base"], SPREADS)
    with look(picture.SETTINGS):
        for shown, title, caption in (
            ([bar], "t" * 80, ""),
            ([bar], "", "c" * 120),
            ([Bar("n" * 60, True, bar.speed)], "", ""),
        ):
            with pytest.raises(SystemExit, match="too wide for the picture"):
                draw(shown, title, caption)


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
