"""Shared parts of all figures: colours, settings, axes in points, and SVG for a page."""

import html
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.machine.extras import needs

# Okabe and Ito's colours, distinct under all common colour vision deficiencies.
PLAIN_COLOUR = "#666666"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = (("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("*", "★"), ("h", "⬢"))

_WIDTH, _SIDE, _ABOVE, _BELOW = 288.0, 8.0, 26.0, 38.0  # points: total width, and margins around the axes
_LEFT, _LEFT_OF_TICKS = 18.0, 42.0  # margin for a y label, and for a y label with ticks
_LINE, _GAP = 11.5, 8.0  # points: line height, and gap between rows
_LONGEST_LINE, _MOST_LINES = 30, 4  # characters and lines of a name
_SETTINGS = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a dollar sign in a name isn't mathematics
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True, slots=True)
class Style:
    """A strategy's colour and marker in every figure; ``glyph`` is the marker as a character."""

    colour: str
    marker: str
    glyph: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure: title, SVG element, caption, and a key of (glyph, colour, name)."""

    title: str
    svg: str
    caption: str
    key: tuple[tuple[str, str, str], ...] = ()


@contextmanager
def look(settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw within the block with the settings of all figures, and ``settings`` on top."""
    matplotlib = needs("matplotlib", "compare", "a picture")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams.update({**_SETTINGS, **(settings or {})})
        yield


def one_axes(title: str, x_label: str, y_label: str, height: float, left: float = _LEFT_OF_TICKS) -> tuple[Any, Any]:
    """A figure with one pair of axes, ``height`` points high."""
    whole, width = height + _ABOVE + _BELOW, _WIDTH - left - _SIDE
    figure = needs("matplotlib.figure", "compare", "a picture").Figure(figsize=(_WIDTH / 72, whole / 72))
    figure.text(0, 1 - 4 / whole, title, fontsize=10, fontweight="bold", verticalalignment="top")
    axes = figure.add_axes((left / _WIDTH, _BELOW / whole, width / _WIDTH, height / whole))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.yaxis.set_label_coords(-(left - 12) / width, 0.5)
    return figure, axes


def row_axes(
    title: str, x_label: str, labels: Sequence[tuple[str, str]], height: float, y_label: str = ""
) -> tuple[Any, Any, list[float]]:
    """Axes with a row for each label: a line with a name and a value at the right, and ``height`` points below it.

    Returns figure, axes and the y of each row's lower end, in points from the top.
    """
    names = [_wrapped(name) for name, _ in labels]
    bottoms = np.cumsum([_LINE * len(lines) + height + _GAP for lines in names]).tolist()
    figure, axes = one_axes(title, x_label, y_label, bottoms[-1] + _GAP, left=_LEFT if y_label else _SIDE)
    axes.set_ylim(bottoms[-1] + _GAP, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    free = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # hides lines under the text
    placed = {"transform": axes.get_yaxis_transform(), "verticalalignment": "top", "bbox": free}
    for lines, (_, figures), bottom in zip(names, labels, bottoms, strict=True):
        top = bottom - height - _LINE * len(lines)
        for place, line in enumerate(lines):
            axes.text(0 if y_label else -_SIDE / (_WIDTH - 2 * _SIDE), top + place * _LINE, line, **placed)
        if figures:
            axes.text(1, top, figures, horizontalalignment="right", **placed)
    return figure, axes, bottoms


def _wrapped(name: str) -> list[str]:
    """Break a name into lines after spaces, commas, colons and underscores."""
    shown = "".join(character if character.isprintable() else "�" for character in name)
    lines = [""]
    for piece in re.findall(rf"[^\s,:_]{{0,{_LONGEST_LINE}}}[\s,:_]?", shown):
        if len(lines[-1] + piece) > _LONGEST_LINE + 1:
            lines.append("")
        lines[-1] += piece
    return [*lines[: _MOST_LINES - 1], lines[_MOST_LINES - 1] + "…"] if len(lines) > _MOST_LINES else lines


def as_svg(figure: Any, title: str) -> str:
    """The figure as an SVG element for a page: scalable, labelled, without unused ids."""
    text = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")  # the reader's fonts may have the glyph
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' (width|height)="[^"]*"', "", svg, count=2)  # the page sets the size
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
