"""Figures of a merge: who earned what, by depth, and whose chances came true."""

from collections.abc import Sequence
from typing import Any

from specdec.comparison.axes import COLOURS, MARKERS, PLAIN_COLOUR, Plot, one_axes, row_axes
from specdec.comparison.contributions import Earning
from specdec.errors import plural

_MOST_DEPTHS = 12  # from here on depths share a bar
_FEWEST_NODES = 20  # a bin with fewer says little, and is drawn small


def earned(strategy: str, sources: Sequence[Earning]) -> tuple[Any, Plot]:
    """Draw each source's nodes and tokens per step, by depth."""
    title, height = "Who earned what, by depth", 42
    folded = [_folded(own) for own in sources]
    most = max(max(own) for own in folded)
    longest = max(2, most)
    labels = [(own.source, f"{own.tokens_per_step:.2f} of {own.nodes_per_step:.1f}") for own in sources]
    figure, axes, bottoms = row_axes(title, "depth below the root", labels, height, "nodes per step")
    scale = (height - 6) / max(named for own in folded for named, _ in own.values())
    for place, (own, bottom) in enumerate(zip(folded, bottoms, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        for depth, (named, right) in own.items():
            axes.bar(depth, -scale * named, bottom=bottom, color=colour, alpha=0.25)
            axes.bar(depth, -scale * right, bottom=bottom, color=colour)
        axes.axhline(bottom, color="#999999", linewidth=0.6)
    is_cut = any(max(own.by_depth) > _MOST_DEPTHS for own in sources)
    places = range(1, longest + 1)
    axes.set_xticks(places, [f"{place}+" if is_cut and place == _MOST_DEPTHS else str(place) for place in places])
    axes.set_xlim(0.4, longest + 0.6)
    caption = (
        f"{strategy}: what each source named, alone or with others (light), and what of it was right (full), per "
        "step; at the right, tokens earned of nodes named. A node that several name counts for each."
    )
    return figure, Plot(title, "", caption)


def _folded(own: Earning) -> dict[int, tuple[float, float]]:
    """By depth, all depths from ``_MOST_DEPTHS`` on together."""
    found: dict[int, tuple[float, float]] = {}
    for depth, (named, right) in own.by_depth.items():
        place = min(depth, _MOST_DEPTHS)
        before = found.get(place, (0.0, 0.0))
        found[place] = before[0] + named, before[1] + right
    return found


def calibrated(strategy: str, sources: Sequence[Earning]) -> tuple[Any, Plot]:
    """Draw the observed acceptance against the predicted chance, in tenths of it."""
    title = "Predicted chance and what came of it"
    figure, axes = one_axes(title, "predicted chance", "share that was right", height=200)
    axes.plot([0, 1], [0, 1], color=PLAIN_COLOUR, linewidth=0.8, linestyle="--", zorder=0)
    axes.fill_between([0, 1], [-0.05, 0.95], [0.05, 1.05], color=PLAIN_COLOUR, alpha=0.12, linewidth=0, zorder=0)
    key = []
    for place, own in enumerate(sources):
        colour, (marker, glyph) = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        known = [each for each in own.bins if each.num_nodes >= _FEWEST_NODES]
        axes.plot([each.predicted for each in known], [each.observed for each in known], color=colour, linewidth=1)
        for each in own.bins:
            size = 5.5 if each.num_nodes >= _FEWEST_NODES else 2.5
            axes.plot(each.predicted, each.observed, marker=marker, color=colour, markersize=size, clip_on=False)
        total = sum(each.num_nodes for each in own.bins)
        key.append((glyph, colour, f"{own.source}, {plural(total, 'node')}"))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    caption = (
        f"{strategy}: the nodes below accepted ones, by tenths of the chance that each was given behind its parent; "
        f"small marks are of fewer than {_FEWEST_NODES} nodes. On the dashed line chances come true; grey: within 0.05."
    )
    return figure, Plot(title, "", caption, tuple(key))
