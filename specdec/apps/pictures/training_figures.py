"""Curves of a head's training as SVG, narrow enough for a phone."""

from typing import Any

from specdec.apps.comparison.figures.axes import COLOURS, MARKERS, PLAIN_COLOUR, Plot, as_svg, look, one_axes
from specdec.heads.training.run import RunOutcome

_HEIGHT = 150  # points


def curves(run: RunOutcome) -> list[Plot]:
    """Draw loss, acceptance by depth and tokens per step over the updates of a training, as far as it has them."""
    plots = []
    curves_of = (_loss, run.losses), (_acceptance, run.evaluations), (_tokens_per_step, run.evaluations)
    for index, (make, points) in enumerate(curves_of):
        if not points:  # interrupted before the first one
            continue
        with look({"svg.hashsalt": f"specdec training {index}"}):
            figure, plot = make(run)
            plots.append(Plot(plot.title, as_svg(figure, plot.title), plot.caption, plot.key))
    return plots


def _loss(run: RunOutcome) -> tuple[Any, Plot]:
    title = "Loss"
    figure, axes = one_axes(title, "updates", "cross-entropy", _HEIGHT)
    axes.plot(*zip(*run.losses, strict=True), color=COLOURS[0], linewidth=1.2, marker=".", markersize=4)
    caption = (
        "Each point is the mean over all updates since the point before. An EAGLE-3 head's loss rises where a third "
        "unrolled step is added to it, when the learning rates begin to fall."
    )
    return figure, Plot(title, "", caption)


def _acceptance(run: RunOutcome) -> tuple[Any, Plot]:
    title = "Acceptance by depth"
    figure, axes = one_axes(title, "updates", "accepted with all before (%)", _HEIGHT)
    updates = [update for update, _ in run.evaluations]
    styles = [(COLOURS[depth], *MARKERS[depth]) for depth in range(len(run.evaluations[0][1].chain))]
    for depth, (colour, marker, _) in enumerate(styles):
        shares = [100 * found.chain[depth] for _, found in run.evaluations]
        axes.plot(updates, shares, color=colour, marker=marker, markersize=4, linewidth=1.2, clip_on=False)
    _mark_best(axes, run)
    axes.set_ylim(0)
    key = tuple((glyph, colour, f"token {depth + 1}") for depth, (colour, _, glyph) in enumerate(styles))
    caption = (
        "Share of positions of held-out text at which all draft tokens up to this one are right. The dashed line marks "
        "the head that was kept."
    )
    return figure, Plot(title, "", caption, key)


def _tokens_per_step(run: RunOutcome) -> tuple[Any, Plot]:
    title = "Tokens per step on held-out text"
    figure, axes = one_axes(title, "updates", "tokens per step", _HEIGHT)
    points = [(update, found.tokens_per_step) for update, found in run.evaluations]
    axes.plot(*zip(*points, strict=True), color=COLOURS[0], marker="s", markersize=4, linewidth=1.2, clip_on=False)
    _mark_best(axes, run)
    axes.set_ylim(1.0, max(1.5, axes.get_ylim()[1]))
    depth = len(run.evaluations[0][1].chain)
    return figure, Plot(title, "", f"Chains of {depth} draft tokens. Plain decoding has 1.")


def _mark_best(axes: Any, run: RunOutcome) -> None:
    axes.axvline(run.best, color=PLAIN_COLOUR, linewidth=0.8, linestyle="--", zorder=0)
