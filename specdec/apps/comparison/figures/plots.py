"""A comparison's figures as SVG: narrow enough for a phone, and reproducible to the byte."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from specdec.apps.comparison.contributions import contributions
from specdec.apps.comparison.figures import merges
from specdec.apps.comparison.figures.axes import (
    COLOURS,
    MARKERS,
    PLAIN_COLOUR,
    Plot,
    Style,
    as_svg,
    look,
    one_axes,
    row_axes,
)
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.rows import Row
from specdec.costs import Costs
from specdec.record import PHASES

_PHASE_COLOURS = (
    "#00224E",
    "#4E576C",
    "#7F7C75",
    "#BCAE6C",
    "#FEE838",
)  # cividis: no strategy's colour, and ordered in greyscale
_MOST_LENGTHS = 12  # longer accepted lengths share the last bar
_NUM_BINS = 8


Maker = Callable[[], tuple[Any, Plot]]  # returns a figure, and its Plot without the SVG


def styles_of(comparisons: Iterable[Comparison]) -> dict[str, Style]:
    """A style for every strategy; plain decoding is grey, with a marker for each of its numerics."""
    styles: dict[str, Style] = {}
    for comparison in comparisons:
        for name in comparison.plan.strategies:
            if name == comparison.plan.baseline:
                styles.setdefault(name, Style(PLAIN_COLOUR, "o", "●"))
            elif name == comparison.plan.reference:
                styles.setdefault(name, Style(PLAIN_COLOUR, "X", "✖"))
            elif name not in styles:
                place = sum(style.colour != PLAIN_COLOUR for style in styles.values())
                styles[name] = Style(COLOURS[place % len(COLOURS)], *MARKERS[place % len(MARKERS)])
    return styles


def draw(comparison: Comparison, styles: dict[str, Style], costs: Costs | None, salt: str) -> list[Plot]:
    """Draw all figures of a comparison; ``salt`` makes their ids unique within the page."""
    of_runs = (speed_ups, phases, accepted_lengths, by_category, by_position)
    makers: list[Maker] = [partial(make, comparison, styles) for make in of_runs]
    if costs is not None:
        makers.append(partial(pass_costs, comparison, styles, costs))
    for name in (row.strategy for row in comparison.drafting):
        if sources := contributions(comparison.runs_of(name)):
            makers += [partial(make, name, sources) for make in (merges.contribution_by_depth, merges.calibration)]
    return draw_all(makers, salt)


def draw_all(makers: Sequence[Maker], salt: str) -> list[Plot]:
    """Draw the figures of ``makers``; ``salt`` makes their ids unique within the page."""
    plots = []
    for index, make in enumerate(makers):
        with look({"svg.hashsalt": f"{salt} {index}"}):
            figure, plot = make()
            plots.append(Plot(plot.title, as_svg(figure, plot.title), plot.caption, plot.key))
    return plots


def _drafting(comparison: Comparison) -> list[Row]:
    """The rows to show acceptance for: all but plain decoding, if there are others."""
    return comparison.drafting or comparison.ranking


def speed_ups(comparison: Comparison, styles: dict[str, Style]) -> tuple[Any, Plot]:
    """Draw the speed-ups over plain decoding, with intervals and a line at 1 in each row."""
    title, rows, height = "Speed-up over plain decoding", comparison.ranking, 10
    labels = [(row.strategy, _interval(row, comparison.plan.baseline)) for row in rows]
    figure, axes, bottoms = row_axes(title, "times plain decoding's tokens per second", labels, height)
    ends = [1.0]
    for row, bottom in zip(rows, bottoms, strict=True):
        style, ratio = styles[row.strategy], row.speed_up
        low, high = (ratio.low, ratio.high) if math.isfinite(ratio.high) else (ratio.value, ratio.value)
        # Between the rows of text, whose width depends on the reader's fonts.
        axes.plot([1.0, 1.0], [bottom - height, bottom], color=PLAIN_COLOUR, linewidth=0.8, zorder=0)
        axes.plot([low, high], [bottom - 5] * 2, color=style.colour, linewidth=2)
        axes.plot(ratio.value, bottom - 5, marker=style.marker, color=style.colour, markersize=6)
        ends += [low, high]
    room = 0.06 * (max(ends) - min(ends)) or 0.1
    axes.set_xlim(min(ends) - room, max(ends) + room)
    return figure, Plot(title, "", "Marks are the measured ratios, bars their 95 % bootstrap intervals over prompts.")


def phases(comparison: Comparison, styles: dict[str, Style]) -> tuple[Any, Plot]:
    """Draw the mean time of each phase of a step."""
    title, rows = "Where a step's time goes", comparison.ranking
    totals = [1000 * sum(row.seconds.values()) for row in rows]
    labels = [(row.strategy, f"{total:.3g} ms") for row, total in zip(rows, totals, strict=True)]
    figure, axes, bottoms = row_axes(title, "milliseconds per step", labels, height=12)
    for row, bottom in zip(rows, bottoms, strict=True):
        left = 0.0
        for phase, colour in zip(PHASES, _PHASE_COLOURS, strict=True):
            width = 1000 * row.seconds[phase]
            axes.barh(bottom - 6, width, left=left, height=11, color=colour, edgecolor="white", linewidth=0.4)
            left += width
    axes.set_xlim(0, 1.02 * max(totals) or 1.0)
    key = tuple(("■", colour, phase) for phase, colour in zip(PHASES, _PHASE_COLOURS, strict=True))
    return figure, Plot(title, "", "Means; a run's first step is its prompt, counted under forward.", key)


def accepted_lengths(comparison: Comparison, styles: dict[str, Style]) -> tuple[Any, Plot]:
    """Draw the share of steps that emit each number of tokens."""
    rows = _drafting(comparison)
    lengths = [np.concatenate([run.accepted_lengths for run in comparison.runs_of(row.strategy)]) for row in rows]
    most = max(int(own.max()) for own in lengths)
    longest = max(2, min(_MOST_LENGTHS, most))
    title, height = "Accepted lengths", 42
    labels = [(row.strategy, f"mean {row.tokens_per_step:.2f}") for row in rows]
    figure, axes, bottoms = row_axes(title, "tokens emitted by a step", labels, height, "share of steps (%)")
    places = range(1, longest + 1)
    shares = [[float(np.mean(np.minimum(own, longest) == place)) for place in places] for own in lengths]
    scale = (height - 14) / max(map(max, shares))
    for row, own, bottom in zip(rows, shares, bottoms, strict=True):
        _draw_shares(axes, own, bottom, scale, styles[row.strategy].colour)
    axes.set_xticks(places, [f"{place}+" if place == longest < most else str(place) for place in places])
    axes.set_xlim(0.5, longest + 0.5)
    return figure, Plot(title, "", "The bonus token is included. Plain decoding always emits 1.")


def _draw_shares(axes: Any, shares: Sequence[float], bottom: float, scale: float, colour: str) -> None:
    """Draw one strategy's shares as bars, each with its figure."""
    axes.bar(range(1, len(shares) + 1), [-scale * share for share in shares], bottom=bottom, color=colour)
    axes.axhline(bottom, color="#999999", linewidth=0.6)
    for place, share in enumerate(shares, start=1):
        if share:
            shown = f"{100 * share:.0f}" if share >= 0.005 else "<1"
            axes.text(place, bottom - scale * share - 2.5, shown, horizontalalignment="center")


def by_category(comparison: Comparison, styles: dict[str, Style]) -> tuple[Any, Plot]:
    """Draw the tokens per step of each category's prompts."""
    title, apart = "Tokens per step by category", 7.5
    names = [row.strategy for row in _drafting(comparison)]
    labels = [(category, "") for category in comparison.categories]
    height = apart * len(names)
    figure, axes, bottoms = row_axes(title, "tokens per step", labels, height)
    for category, bottom in zip(comparison.categories, bottoms, strict=True):
        for place, name in enumerate(names):
            value, y = comparison.tokens_per_step(name, category), bottom - apart * (len(names) - place - 0.5)
            axes.plot([1, value], [y, y], color=styles[name].colour, linewidth=1)
            axes.plot(value, y, marker=styles[name].marker, color=styles[name].colour, markersize=5, clip_on=False)
        axes.plot([1, 1], [bottom - height, bottom], color=PLAIN_COLOUR, linewidth=0.8, zorder=0, clip_on=False)
    axes.set_xlim(1.0, max(1.5, axes.get_xlim()[1]))
    return figure, Plot(title, "", "Plain decoding has 1, where the axis starts.", _key(names, styles))


def by_position(comparison: Comparison, styles: dict[str, Style]) -> tuple[Any, Plot]:
    """Draw the tokens per step along the new text."""
    title, names = "Tokens per step along the text", [row.strategy for row in _drafting(comparison)]
    longest = max(len(run.tokens) for name in names for run in comparison.runs_of(name))
    width = max(1, math.ceil(longest / _NUM_BINS))
    figure, axes = one_axes(title, "position in the new text (tokens)", "tokens per step", height=150)
    for name in names:
        style, (centres, means) = styles[name], _along(comparison, name, width)
        axes.plot(centres, means, marker=style.marker, color=style.colour, markersize=5, linewidth=1.2, clip_on=False)
    axes.set_xlim(0, width * math.ceil(longest / width))
    axes.set_ylim(1.0, max(1.5, axes.get_ylim()[1]))
    caption = (
        f"Means of the steps that start in each stretch of {width} tokens, over all prompts. Plain decoding has 1."
    )
    return figure, Plot(title, "", caption, _key(names, styles))


def _along(comparison: Comparison, name: str, width: int) -> tuple[list[float], list[float]]:
    """The centre and mean accepted length of each stretch of ``width`` tokens in which a step starts."""
    stretches: dict[int, list[int]] = {}
    for run in comparison.runs_of(name):
        position = 0
        for length in run.accepted_lengths:
            stretches.setdefault(position // width, []).append(length)
            position += length
    places = sorted(stretches)
    return [(place + 0.5) * width for place in places], [float(np.mean(stretches[place])) for place in places]


def pass_costs(comparison: Comparison, styles: dict[str, Style], costs: Costs) -> tuple[Any, Plot]:
    """Draw c(T), and each strategy's tokens per step over its nodes per step."""
    title, names = "Cost of a pass over T nodes", [row.strategy for row in comparison.ranking]
    figure, axes = one_axes(title, "nodes in a pass, T", "c(T), and tokens per step", height=150)
    axes.plot(costs.sizes, costs.relative, color="#333333", linewidth=1.4, marker=".", zorder=1)
    for row in comparison.rows:
        style = styles[row.strategy]
        axes.plot(row.nodes_per_step, row.tokens_per_step, marker=style.marker, color=style.colour, markersize=7)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    powers = [2**power for power in range(12) if 2**power <= high]
    axes.set_xticks(costs.sizes, map(str, costs.sizes))
    axes.set_yticks(powers, map(str, powers))
    axes.minorticks_off()
    axes.set_ylim(min(low, 0.9), max(high, 2.1))
    caption = (
        f"Line: a pass over T nodes takes c(T) times a plain step's {1000 * costs.plain:.3g} ms. Marks: nodes and "
        "tokens per step of a strategy; above the line a step gains, drafting time not counted."
    )
    return figure, Plot(title, "", caption, _key(names, styles))


def _key(names: Sequence[str], styles: dict[str, Style]) -> tuple[tuple[str, str, str], ...]:
    return tuple((styles[name].glyph, styles[name].colour, name) for name in names)


def _interval(row: Row, baseline: str) -> str:
    if row.strategy == baseline:
        return "1"
    return str(row.speed_up) if math.isfinite(row.speed_up.high) else f"{row.speed_up.value:.2f}, no interval"
