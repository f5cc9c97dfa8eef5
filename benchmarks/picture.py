"""A picture of a comparison: a bar of tokens per second for each contender that is given a name.

    python -m benchmarks picture build/benchmark.json --out docs/speed.png --title "Tokens per second, float32" \\
        --label "transformers=transformers" --label "specdec:auto+numerics=auto=specdec, nothing said" \\
        --caption "SmolLM2-135M-Instruct, float32, two cores of an AMD EPYC, November 2025"

A bar ends at the median over prompts, of each the median of its repeats; the line goes from quartile to quartile. Bars
are drawn in the order of the names, specdec's in blue. The picture is a PNG, 1,400 pixels wide for a page of 700.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.summary import Spread
from specdec.comparison.axes import COLOURS, PLAIN_COLOUR, look
from specdec.comparison.extras import needs

_WIDTH, _SIDE, _RIGHT, _GAP = 504.0, 8.0, 14.0, 8.0  # points: the whole; margins; and between a name and its bar
_ABOVE, _BELOW = 34.0, 52.0  # the title, and below the bars: ticks, what they are of, and the caption
_ROW, _BAR = 26.0, 15.0  # a bar with what is round it, and its height
_WIDEST_NAME = 240.0
_NAMES, _TITLE, _SMALL = 10.0, 13.0, 8.5  # sizes of letters
_DPI = 200
SETTINGS = {"font.size": _NAMES, "axes.labelsize": _SMALL, "xtick.labelsize": _SMALL}


@dataclass(frozen=True)
class Bar:
    """A contender by the name it is drawn with, and its tokens per second over prompts."""

    name: str
    is_ours: bool
    speed: Spread


def speeds(data: Mapping[str, Any]) -> dict[str, Spread]:
    """Tokens per second of each contender that ran to the end, over prompts."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in data["runs"]:
        found[run["contender"]][run["prompt"]].append(run["tokens"] / run["seconds"])
    names = [row["contender"] for row in data["rows"]]
    return {name: Spread.of([statistics.median(each) for each in found[name].values()]) for name in names}


def bars(labels: Sequence[str], known: Mapping[str, Spread]) -> list[Bar]:
    """Return the bars to draw, one for each ``CONTENDER=TEXT``.

    Contenders may have equals signs too, so the longest one that fits counts.
    """
    made = []
    for label in labels:
        fitting = [name for name in known if label.startswith(f"{name}=")]
        if not fitting:
            raise SystemExit(f"--label {label}: it begins with none of the contenders: {', '.join(known)}")
        name = max(fitting, key=len)
        made.append(Bar(label[len(name) + 1 :], name.partition(":")[0] == "specdec", known[name]))
    return made


def draw(shown: Sequence[Bar], title: str, caption: str) -> Any:
    """The figure; names stand left of their bars, and what a bar comes to right of it.

    Raises:
        SystemExit: for a text that is too wide.
    """
    _check_room(shown, title, caption)
    left = _SIDE + max(_width(bar.name, _NAMES) for bar in shown) + _GAP
    inner, height = _ROW * len(shown), _ROW * len(shown) + _ABOVE + _BELOW
    figure = needs("matplotlib.figure").Figure(figsize=(_WIDTH / 72, height / 72))
    figure.text(_SIDE / _WIDTH, 1 - 8 / height, title, fontsize=_TITLE, fontweight="bold", verticalalignment="top")
    figure.text(_SIDE / _WIDTH, 7 / height, caption, fontsize=_SMALL, color=PLAIN_COLOUR, verticalalignment="bottom")
    axes = figure.add_axes((left / _WIDTH, _BELOW / height, (_WIDTH - left - _RIGHT) / _WIDTH, inner / height))
    values = [f"{bar.speed.median:.1f}" for bar in shown]
    ends = [max(bar.speed.median, bar.speed.high or 0.0) for bar in shown]
    room = 1 - (_GAP + max(_width(value, _NAMES) for value in values)) / (_WIDTH - left - _RIGHT)
    axes.set_xlim(0, max(ends) / room)
    axes.set_ylim(inner, 0)
    axes.set_yticks([(place + 0.5) * _ROW for place in range(len(shown))], [bar.name for bar in shown])
    axes.tick_params(axis="y", length=0, pad=_GAP)
    axes.set_xlabel("tokens per second: median over prompts; lines from quartile to quartile", loc="right")
    for place, (bar, value, end) in enumerate(zip(shown, values, ends, strict=True)):
        y = (place + 0.5) * _ROW
        _draw_bar(axes, y, bar)
        beside = {"textcoords": "offset points", "verticalalignment": "center_baseline"}
        axes.annotate(value, (end, y), (_GAP / 2, 0), **beside)
    return figure


def _draw_bar(axes: Any, y: float, bar: Bar) -> None:
    axes.barh(y, bar.speed.median, height=_BAR, color=COLOURS[0] if bar.is_ours else "#999999")
    if bar.speed.low is not None:
        for width, colour in ((3.0, "white"), (1.0, "black")):  # the rim keeps it visible on the bar
            axes.plot([bar.speed.low, bar.speed.high], [y, y], color=colour, linewidth=width, solid_capstyle="butt")


def _check_room(shown: Sequence[Bar], title: str, caption: str) -> None:
    widths = {title: _width(title, _TITLE, "bold"), caption: _width(caption, _SMALL)}
    widths |= {bar.name: _width(bar.name, _NAMES) + _WIDTH - _WIDEST_NAME for bar in shown}
    for text, width in widths.items():
        if width > _WIDTH - 2 * _SIDE:
            raise SystemExit(f"too wide for the picture: {text!r}")


def _width(text: str, size: float, weight: str = "normal") -> float:
    """A line's width in points, at the most: drawn letters are moved to whole pixels."""
    if not text.strip():  # a path of nothing is an error
        return 0.0
    font = needs("matplotlib.font_manager").FontProperties(size=size, weight=weight)
    return 1.05 * float(needs("matplotlib.textpath").TextPath((0, 0), text, prop=font).get_extents().width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="the JSON file that `compare` wrote")
    parser.add_argument("--label", action="append", required=True, metavar="CONTENDER=TEXT", help="one for each bar")
    parser.add_argument("--title", default="Tokens per second")
    parser.add_argument("--caption", default="", help="one line: model, dtype, machine and date")
    parser.add_argument("--out", type=Path, default=Path("build/speed.png"))
    arguments = parser.parse_args()
    shown = bars(arguments.label, speeds(json.loads(arguments.result.read_text(encoding="utf-8"))))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with look(SETTINGS):
        figure = draw(shown, arguments.title, arguments.caption)
        figure.savefig(arguments.out, format="png", dpi=_DPI, metadata={"Software": None})
    print(arguments.out)


if __name__ == "__main__":
    main()
