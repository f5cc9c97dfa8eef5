"""Figures of a merge: each source's contribution by depth, and the calibration of its probabilities."""

from collections.abc import Sequence
from typing import Any

from specdec.apps.comparison.contributions import Contribution
from specdec.apps.comparison.figures.axes import COLOURS, MARKERS, PLAIN_COLOUR, Plot, one_axes, row_axes
from specdec.errors import plural

_MOST_DEPTHS = 12  # deeper nodes share the last bar
_FEWEST_NODES = 20  # bins with fewer are drawn small


def contribution_by_depth(strategy: str, sources: Sequence[Contribution]) -> tuple[Any, Plot]:
    """Draw the nodes that each source proposed and had accepted per step, by depth."""
    title, height = "Contribution per source, by depth", 42
    folded = [_folded(own) for own in sources]
    most = max(max(own) for own in folded)
    longest = max(2, most)
    labels = [(own.source, f"{own.tokens_per_step:.2f} of {own.nodes_per_step:.1f}") for own in sources]
    figure, axes, bottoms = row_axes(title, "depth below the root", labels, height, "nodes per step")
    scale = (height - 6) / max(proposed for own in folded for proposed, _ in own.values())
    for place, (own, bottom) in enumerate(zip(folded, bottoms, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        for depth, (proposed, accepted) in own.items():
            axes.bar(depth, -scale * proposed, bottom=bottom, color=colour, alpha=0.25)
            axes.bar(depth, -scale * accepted, bottom=bottom, color=colour)
        axes.axhline(bottom, color="#999999", linewidth=0.6)
    is_cut = any(max(own.by_depth) > _MOST_DEPTHS for own in sources)
    places = range(1, longest + 1)
    axes.set_xticks(places, [f"{place}+" if is_cut and place == _MOST_DEPTHS else str(place) for place in places])
    axes.set_xlim(0.4, longest + 0.6)
    caption = (
        f"{strategy}: nodes per step that each source proposed, alone or with others (light), and those accepted "
        "(full); at the right, accepted of proposed. A node proposed by several sources counts for each."
    )
    return figure, Plot(title, "", caption)


def _folded(own: Contribution) -> dict[int, tuple[float, float]]:
    """The counts by depth, with all depths from ``_MOST_DEPTHS`` on summed."""
    found: dict[int, tuple[float, float]] = {}
    for depth, (proposed, accepted) in own.by_depth.items():
        place = min(depth, _MOST_DEPTHS)
        before = found.get(place, (0.0, 0.0))
        found[place] = before[0] + proposed, before[1] + accepted
    return found


def calibration(strategy: str, sources: Sequence[Contribution]) -> tuple[Any, Plot]:
    """Draw the observed acceptance rate over the predicted probability, in tenths."""
    title = "Predicted probability and observed acceptance"
    figure, axes = one_axes(title, "predicted probability", "acceptance rate", height=200)
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
        f"{strategy}: children of accepted nodes, by tenths of their predicted probability given the parent; small "
        f"marks have fewer than {_FEWEST_NODES} nodes. Dashed: observed equals predicted; grey: within 0.05."
    )
    return figure, Plot(title, "", caption, tuple(key))
