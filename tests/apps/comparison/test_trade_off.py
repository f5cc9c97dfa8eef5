"""The picture of a search: its points are the trials', and nothing lies on anything else."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

from specdec.apps.comparison.figures.trade_off import trade_off
from specdec.apps.comparison.statistics import Ratio
from specdec.apps.comparison.trial import Trial
from specdec.apps.comparison.tune import Tuning
from specdec.costs import Costs
from tests.apps.comparison.reported import build

pytest.importorskip("matplotlib")

COSTS = Costs((1, 64), (0.010, 0.0163), 0.008)  # a tenth of a millisecond a node; plain decoding takes 8
LONG = "lookahead:N=5,W=15,G=15," + "pool_from_prompt=true," * 6 + "last=1"


def made(trials: Sequence[tuple[float, int]], name: str = "first", gain: float = 1.0) -> Tuning:
    """A search of settings with these tokens and nodes per step; three are finalists."""
    settings = [
        Trial(name if place == 0 else f"setting {place}", int(1000 * tokens), 1000, 1000 * nodes, 0.0)
        for place, (tokens, nodes) in enumerate(trials)
    ]
    comparison = build({trial.strategy: 2.0 for trial in settings[:3]})
    return Tuning(name, Ratio(gain, gain - 0.1, gain + 0.1), tuple(settings), 0, comparison, COSTS)


SEARCHES = {
    "slow": made([(1.2, 20), (1.2, 21), (1.05, 40), (1.02, 64)], gain=0.8),
    "fast": made([(6.0, 10), (5.8, 11), (4.0, 8), (1.5, 64), (1.1, 2)], gain=4.0),
    "all over": made([(1.0 + (place * 7 % 20) / 8, 1 + place * 13 % 64) for place in range(60)], name=LONG, gain=1.5),
    "one": made([(1.0, 1)]),
}


def drawn(tuning: Tuning) -> tuple[Any, Any]:
    """Figure and axes, laid out."""
    backend = pytest.importorskip("matplotlib.backends.backend_agg")
    figure = trade_off(tuning)
    backend.FigureCanvasAgg(figure).draw()
    return figure, figure.axes[0]


@pytest.mark.parametrize("tuning", SEARCHES.values(), ids=SEARCHES)
def test_labels_legend_and_points_are_apart(tuning: Tuning) -> None:
    figure, axes = drawn(tuning)
    (legend,) = figure.legends
    boxes = {"legend": legend.get_window_extent(), "points": axes.get_window_extent()}
    boxes |= {text.get_text(): text.get_window_extent() for text in axes.texts}
    boxes |= {"title": axes.title.get_window_extent(), "x": axes.xaxis.label.get_window_extent()}
    boxes |= {
        f"tick {tick.get_text()}": tick.get_window_extent()
        for tick in axes.get_xticklabels()
        if tick.get_position()[0] <= axes.get_xlim()[1]
    }
    for (one, own), (other, others) in combinations(boxes.items(), 2):
        width = min(own.x1, others.x1) - max(own.x0, others.x0)
        height = min(own.y1, others.y1) - max(own.y0, others.y0)
        assert min(width, height) < 1.0, (one, other)
    for name, box in boxes.items():
        assert box.x0 >= 0, name
        assert box.y0 >= 0, name
        assert box.x1 <= figure.bbox.x1, name
        assert box.y1 <= figure.bbox.y1, name
    assert "1×" in boxes


def test_points_are_where_the_trials_are_and_lines_are_of_the_speed_that_they_name() -> None:
    tuning = SEARCHES["fast"]
    _, axes = drawn(tuning)
    plain, screened, in_earnest, best = (points.get_offsets().tolist() for points in axes.collections)
    expected = [
        (10 + (nodes - 1) / 10, tokens) for tokens, nodes in [(6.0, 10), (5.8, 11), (4.0, 8), (1.5, 64), (1.1, 2)]
    ]
    assert plain == [[8.0, 1.0]]
    assert screened == [pytest.approx(place) for place in expected]
    assert in_earnest == screened[:3]
    assert best == screened[:1]
    assert len(axes.lines) == len(axes.texts) > 2
    for line, text in zip(axes.lines, axes.texts, strict=True):
        (_, x), (_, y) = line.get_xdata(), line.get_ydata()
        assert f"{y / x * 8.0:g}×" == text.get_text()


def test_it_is_called_best_only_where_it_is_faster_for_certain() -> None:
    for name, label in (("slow", "fastest finalist"), ("fast", "best"), ("one", "fastest finalist")):
        figure, axes = drawn(SEARCHES[name])
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts[-1] == label
    assert axes.get_title() == "first\n1.00 [0.90, 1.10] times plain decoding, measured"
