"""The trade-off of a search as a figure: tokens per step over the cost of a step."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from specdec.apps.comparison.tune import Tuning
from specdec.machine.extras import needs

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#777777"  # Okabe and Ito's, distinct for the colour-blind
_LONGEST_LINE = 76  # characters of the title
_APART = 0.06  # distance between labels of lines, as a share of the axes


def save_trade_off(path: Path, tuning: Tuning) -> None:
    """Save ``trade_off`` as SVG or PNG, by the file's suffix."""
    trade_off(tuning).savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def trade_off(tuning: Tuning) -> Any:
    """Draw every screened setting by milliseconds and tokens per step.

    Each dashed line has one speed; steeper is faster. Labels of lines and the legend are outside the axes, since points
    may lie anywhere inside.
    """
    figure = needs("matplotlib.figure", "compare", "a picture").Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    milliseconds = np.array([1000 * trial.seconds_per_step(tuning.costs) for trial in tuning.trials])
    tokens = np.array([trial.tokens_per_step for trial in tuning.trials])
    plain = 1000 * tuning.costs.plain
    axes.set_xlim(0, 1.13 * max(plain, float(milliseconds.max())))
    axes.set_ylim(0.9, 1.15 * float(tokens.max()))
    _draw_lines(axes, float(max(tokens / milliseconds)) * plain, plain)
    axes.scatter(plain, 1.0, s=40, marker="s", color=_GREY, label="plain decoding")
    axes.scatter(milliseconds, tokens, s=18, color=_BLUE, label="screened")
    finalists = [trial for trial in tuning.trials if trial.strategy in tuning.comparison.plan.strategies]
    axes.scatter(
        [1000 * trial.seconds_per_step(tuning.costs) for trial in finalists],
        [trial.tokens_per_step for trial in finalists],
        s=60, facecolors="none", edgecolors=_ORANGE, label="finalists",
    )  # fmt: skip
    (first,) = (trial for trial in finalists if trial.strategy == tuning.strategy)
    label = "best" if tuning.is_best else "fastest finalist"
    place = 1000 * first.seconds_per_step(tuning.costs), first.tokens_per_step
    axes.scatter(*place, s=110, marker="*", color=_ORANGE, edgecolors="white", linewidths=0.6, label=label)
    title = [*textwrap.wrap(tuning.strategy, _LONGEST_LINE), f"{tuning.gain} times plain decoding, measured"]
    axes.set_title("\n".join(title), fontsize=10, pad=18)
    axes.set_xlabel("milliseconds per step, predicted from its nodes")
    axes.set_ylabel("tokens per step")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def _draw_lines(axes: Any, most: float, plain: float) -> None:
    """Draw lines of equal speed, each labelled with its gain where it leaves the axes."""
    (_, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    labelled: list[tuple[float, float]] = []
    for gain in _gains(most):
        at_top = top * plain / gain
        x, y = min(at_top, right), min(gain * right / plain, top)
        place = (x / right, (y - bottom) / (top - bottom))
        if y <= bottom or any(np.hypot(place[0] - a, place[1] - b) < _APART for a, b in labelled):
            continue
        label = None if labelled else "times plain decoding"
        axes.plot([0, x], [0, y], "--", color=_GREY, linewidth=0.7, label=label, zorder=0)
        offset, alignment = ((0, 3), ("center", "bottom")) if at_top <= right else ((4, 0), ("left", "center"))
        axes.annotate(
            f"{gain:g}×", place, xycoords="axes fraction", xytext=offset, textcoords="offset points",
            fontsize=8, color=_GREY, horizontalalignment=alignment[0], verticalalignment=alignment[1],
        )  # fmt: skip
        labelled.append(place)


def _gains(most: float) -> list[float]:
    """The gains to draw lines for, those placed first in front: 1, plain decoding, is the first."""
    gains = [
        gain for gain in (0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0) if 0.4 * most <= gain <= 1.15 * most
    ]
    return [1.0, *gains]
