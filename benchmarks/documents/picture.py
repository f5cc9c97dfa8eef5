"""A chart of one comparison or several: tokens per second of named contenders.

    python -m benchmarks picture build/benchmark.json --out docs/speed.png --title "Tokens per second" \\
        --label "transformers=transformers" --label "specdec:auto+numerics=auto=specdec, default settings" \\
        --caption "SmolLM2-135M-Instruct, two cores of an AMD EPYC, November 2025"

A bar is a contender's tokens per second as in the tables of ``compare``: the tokens of all prompts over their seconds,
the median over repeats. Each result file is a panel, headed by its dtype. Bars are in the order of the labels,
specdec's in blue. The chart is a PNG, 1,400 pixels wide for a page of 700. Its figures are embedded as the text chunk
``Figures``, so that a test can compare them with the results.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.apps.comparison.figures.axes import COLOURS, PLAIN_COLOUR, look
from specdec.machine.extras import needs

_WIDTH, _SIDE, _RIGHT, _GAP = 504.0, 8.0, 14.0, 8.0  # points: the whole; margins; between a name and its bar
_BETWEEN = 22.0  # two panels
_TITLED, _HEADED, _BELOW = 34.0, 16.0, 52.0  # title, panel headings, and below the bars: ticks, their unit, caption
_ROW, _BAR = 26.0, 15.0  # a row's height, and its bar's
_WIDEST_NAME = 240.0
_NAMES, _TITLE, _SMALL = 10.0, 13.0, 8.5  # font sizes
_DPI = 200
_UNIT = "tokens per second: all tokens over all seconds"
FIGURES = "Figures"  # the key of the text chunk
SETTINGS = {"font.size": _NAMES, "axes.labelsize": _SMALL, "xtick.labelsize": _SMALL}


@dataclass(frozen=True)
class Bar:
    """A contender's name, and its tokens per second in each panel."""

    name: str
    is_ours: bool
    speeds: tuple[float, ...]


def speeds(data: Mapping[str, Any]) -> dict[str, float]:
    """Tokens per second of each contender that ran to the end."""
    return {row["contender"]: row["tokens_per_second"] for row in data["rows"]}


def ratios(data: Mapping[str, Any], baseline: str = "transformers") -> dict[str, float]:
    """How many times as fast as the baseline each contender is, over the repeats that it took part in.

    The baseline takes part in all repeats. Where contenders were measured in groups, each has repeats of its own.
    """
    repeats: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in data["runs"]:
        repeats[run["contender"]][run["repeat"]].append(run)
    return {
        row["contender"]: row["tokens_per_second"]
        / statistics.median(_speed(repeats[baseline][repeat]) for repeat in repeats[row["contender"]])
        for row in data["rows"]
    }


def _speed(runs: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per second: all tokens over all seconds."""
    return float(sum(run["tokens"] for run in runs) / sum(run["seconds"] for run in runs))


def dtype(data: Mapping[str, Any]) -> str:
    """The dtype of a comparison's model, a panel's heading."""
    return str(data["model"]).rpartition(", ")[2]


def bars(labels: Sequence[str], results: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the bars to draw, one for each ``CONTENDER=TEXT``.

    Contenders may contain equals signs, so the longest matching one counts.
    """
    known = [speeds(data) for data in results]
    shared = [name for name in known[0] if all(name in each for each in known)]
    made = []
    for label in labels:
        fitting = [name for name in shared if label.startswith(f"{name}=")]
        if not fitting:
            raise SystemExit(f"--label {label}: it begins with none of the contenders: {', '.join(shared)}")
        name = max(fitting, key=len)
        values = tuple(each[name] for each in known)
        made.append(Bar(label[len(name) + 1 :], name.partition(":")[0] == "specdec", values))
    return made


def draw(shown: Sequence[Bar], panels: Sequence[str], title: str, caption: str) -> Any:
    """Draw the figure: names on the left, a panel of bars per heading, values to the right of bars.

    Raises:
        SystemExit: if a text is too wide.
    """
    _check_room(shown, title, caption)
    left = _SIDE + max(_width(bar.name, _NAMES) for bar in shown) + _GAP
    above = _TITLED + _HEADED
    inner, height = _ROW * len(shown), _ROW * len(shown) + above + _BELOW
    width = (_WIDTH - left - _RIGHT - _BETWEEN * (len(panels) - 1)) / len(panels)
    figure = needs("matplotlib.figure", "compare", "a picture").Figure(figsize=(_WIDTH / 72, height / 72))
    figure.text(_SIDE / _WIDTH, 1 - 8 / height, title, fontsize=_TITLE, fontweight="bold", verticalalignment="top")
    figure.text(_SIDE / _WIDTH, 7 / height, caption, fontsize=_SMALL, color=PLAIN_COLOUR, verticalalignment="bottom")
    most = max(speed for bar in shown for speed in bar.speeds)  # panels share a scale
    for place, heading in enumerate(panels):
        start = left + place * (width + _BETWEEN)
        axes = figure.add_axes((start / _WIDTH, _BELOW / height, width / _WIDTH, inner / height))
        _draw_panel(axes, [(bar.speeds[place], bar.is_ours) for bar in shown], width, most)
        axes.set_title(heading, loc="left", fontsize=_NAMES, pad=4)
        names = [bar.name for bar in shown] if place == 0 else [""] * len(shown)
        axes.set_yticks([(row + 0.5) * _ROW for row in range(len(shown))], names)
        axes.tick_params(axis="y", length=0, pad=_GAP)
    figure.text(1 - _RIGHT / _WIDTH, 23 / height, _UNIT, fontsize=_SMALL, horizontalalignment="right")
    return figure


def _draw_panel(axes: Any, values: Sequence[tuple[float, bool]], width: float, most: float) -> None:
    labels = [f"{speed:.1f}" for speed, _ in values]
    room = 1 - (_GAP + _width(f"{most:.1f}", _NAMES)) / width
    axes.set_xlim(0, most / room)
    axes.set_ylim(_ROW * len(values), 0)
    axes.locator_params(axis="x", nbins=5)
    for row, ((speed, is_ours), label) in enumerate(zip(values, labels, strict=True)):
        y = (row + 0.5) * _ROW
        axes.barh(y, speed, height=_BAR, color=COLOURS[0] if is_ours else "#999999")
        axes.annotate(label, (speed, y), (_GAP / 2, 0), textcoords="offset points", verticalalignment="center_baseline")


def _check_room(shown: Sequence[Bar], title: str, caption: str) -> None:
    widths = {title: _width(title, _TITLE, "bold"), caption: _width(caption, _SMALL)}
    widths |= {bar.name: _width(bar.name, _NAMES) + _WIDTH - _WIDEST_NAME for bar in shown}
    for text, width in widths.items():
        if width > _WIDTH - 2 * _SIDE:
            raise SystemExit(f"too wide for the picture: {text!r}")


def _width(text: str, size: float, weight: str = "normal") -> float:
    """An upper bound of a line's width in points: letters are drawn at whole pixels."""
    if not text.strip():  # a path of nothing is an error
        return 0.0
    font = needs("matplotlib.font_manager", "compare", "a picture").FontProperties(size=size, weight=weight)
    return 1.05 * float(
        needs("matplotlib.textpath", "compare", "a picture").TextPath((0, 0), text, prop=font).get_extents().width
    )


def figures(shown: Sequence[Bar], panels: Sequence[str]) -> dict[str, dict[str, str]]:
    """The drawn figures of a chart, by panel and name."""
    return {heading: {bar.name: f"{bar.speeds[place]:.1f}" for bar in shown} for place, heading in enumerate(panels)}


def save(shown: Sequence[Bar], panels: Sequence[str], title: str, caption: str, out: Path) -> None:
    """Write the chart as a PNG with its figures embedded."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with look(SETTINGS):
        figure = draw(shown, panels, title, caption)
        embedded = {"Software": None, FIGURES: json.dumps(figures(shown, panels))}
        figure.savefig(out, format="png", dpi=_DPI, metadata=embedded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON files that `compare` wrote, a panel each")
    parser.add_argument("--label", action="append", required=True, metavar="CONTENDER=TEXT", help="one for each bar")
    parser.add_argument("--title", default="Tokens per second")
    parser.add_argument("--caption", default="", help="one line: model, machine and date")
    parser.add_argument("--out", type=Path, default=Path("build/speed.png"))
    arguments = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.results]
    shown = bars(arguments.label, results)
    save(shown, [dtype(data) for data in results], arguments.title, arguments.caption, arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()
