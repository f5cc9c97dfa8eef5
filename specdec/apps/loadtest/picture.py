"""The picture of a load test: latencies and throughput, by rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec.apps.comparison.figures.axes import COLOURS, MARKERS
from specdec.apps.loadtest.figures import PERCENTILES, Percentiles, Summary
from specdec.machine.extras import needs


def save_picture(path: Path, summaries: Sequence[Summary], title: str) -> None:
    """Save the figure as SVG or PNG, by the file's suffix."""
    picture(summaries, title).savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def picture(summaries: Sequence[Summary], title: str) -> Any:
    """Draw three panels over the loads: time to first text, time per token, and throughput."""
    figure = needs("matplotlib.figure", "compare", "a picture").Figure(figsize=(11, 4), layout="constrained")
    first, token, through = figure.subplots(1, 3)
    is_open = summaries[0].rate is not None
    places = [each.rate if is_open else each.streams for each in summaries]
    _percentiles(first, places, [each.first for each in summaries], 1.0, "seconds to the first text")
    _percentiles(token, places, [each.per_token for each in summaries], 1000.0, "milliseconds per later token")
    through.plot(places, [each.tokens_per_second for each in summaries], marker="o", color=COLOURS[0], label="tokens/s")
    through.set_ylabel("tokens per second")
    goodput = through.twinx()
    goodput.plot(places, [each.goodput for each in summaries], marker="s", color=COLOURS[1], label="good requests/s")
    goodput.set_ylabel("requests per second that met the goal")
    goodput.set_ylim(bottom=0)
    through.legend(*_both(through, goodput), fontsize=8, frameon=False)
    for axes in (first, token, through):
        axes.set_xlabel("requests per second" if is_open else "streams at a time")
        axes.set_ylim(bottom=0)
    figure.suptitle(title, fontsize=10)
    return figure


def _percentiles(axes: Any, places: Sequence[Any], spreads: Sequence[Percentiles], scale: float, label: str) -> None:
    for number, percentile in enumerate(PERCENTILES):
        known = [(place, each[number] * scale) for place, each in zip(places, spreads, strict=True) if each]
        style = {"color": COLOURS[number], "marker": MARKERS[number][0], "label": f"p{percentile}"}
        axes.plot(*zip(*known, strict=True), **style)
    axes.set_ylabel(label)
    axes.legend(fontsize=8, frameon=False)


def _both(left: Any, right: Any) -> tuple[list[Any], list[Any]]:
    """Join the legend entries of two axes."""
    handles, labels = left.get_legend_handles_labels()
    more_handles, more_labels = right.get_legend_handles_labels()
    return handles + more_handles, labels + more_labels
