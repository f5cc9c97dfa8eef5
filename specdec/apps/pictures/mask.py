"""The attention mask of one step: what every node of a draft tree sees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec.apps.pictures.trace import Trace, TraceStep, role_names
from specdec.errors import RequestError, plural, shortened
from specdec.layout import Shapes
from specdec.machine.extras import needs
from specdec.masks.visibility import seen_by_kind
from specdec.tree import DraftTree, Role

SUFFIXES = (".svg", ".png")
COLOURS = {  # Okabe and Ito's palette, distinguishable with all common colour vision deficiencies
    "prefix": "#999999",
    "root": "#000000",
    "candidate": "#009E73",
    "probe": "#D55E00",
    "support": "#56B4E9",
}
_SETTLED = 8  # steps after which lookahead's window has iterates only, for every usual N
_CELL, _SMALL_CELL, _MANY = 0.19, 0.115, 60  # inches, and from how many nodes on cells are small
_ABOVE, _BELOW = 0.95, 1.55  # inches around the cells, for title and legend
_LABEL = 14  # characters of a token's text
_FONT = "DejaVu Sans Mono"  # matplotlib brings it along


@dataclass(frozen=True, slots=True, eq=False)
class MaskPicture:
    """A step's mask.

    Attributes:
        prefix: the share of the prefix that each node sees, ``(nodes,)``.
        visible: entry [i, j]: node i sees node j; ``(nodes, nodes)``.
        layers: the kind of attention layer; "" if all layers have the same mask.
    """

    title: str
    step: TraceStep
    prefix: np.ndarray
    visible: np.ndarray
    layers: str

    @classmethod
    def of(cls, trace: Trace, number: int, shapes: Shapes) -> "MaskPicture":
        """Return the mask of step ``number``, counted from 1, as compiled for a backend's shapes.

        Raises:
            RequestError: if there is no such step.
        """
        if not 1 <= number <= len(trace.steps):
            count = f"{plural(len(trace.steps), 'step')}"
            raise RequestError(f"there is no step {number}: decoding took {count}, counted from 1")
        step = trace.steps[number - 1]
        kind = next((kind for kind, window in shapes.attention.items() if window is None), next(iter(shapes.attention)))
        seen = visibility(step.tree, step.prefix_length, shapes, kind)
        prefix = seen[:, : step.prefix_length].sum(axis=1) / max(1, step.prefix_length)
        title = f"Attention mask of step {number} of {len(trace.steps)}, {trace.proposer}"
        layers = kind if any(shapes.attention.values()) else ""
        return cls(title, step, prefix, seen[:, step.prefix_length :], layers)

    @property
    def present(self) -> frozenset[str]:
        """All roles of the nodes."""
        tree = self.step.tree
        return frozenset(name for node in range(len(tree)) for name in role_names(tree, node))

    @property
    def roles(self) -> tuple[str, ...]:
        """Each node's role for its colour: the first of its roles in the order of ``COLOURS``."""
        return tuple(role_names(self.step.tree, node)[0] for node in range(len(self.step.tree)))


def visibility(tree: DraftTree, prefix_length: int, shapes: Shapes, kind: str) -> np.ndarray:
    """Return what each node sees of prefix and tree in a kind of layer: ``(nodes, prefix_length + nodes)``, bool."""
    positions = prefix_length + np.array([tree.depths])
    found: np.ndarray = dict(seen_by_kind([tree], [prefix_length], positions, shapes))[kind][0]
    return found


def telling_step(trace: Trace) -> int:
    """Return the number of an instructive step: late, large, with nodes of each single role, and accepted drafts."""
    numbers = range(min(_SETTLED, len(trace.steps)), len(trace.steps) + 1)

    def rank(number: int) -> tuple[int, int, int]:
        step = trace.steps[number - 1]
        return len(set(step.tree.roles[1:]) & set(Role)), min(2, step.num_accepted), len(step.tree)

    return max(numbers, key=rank)


def check_path(path: Path) -> None:
    """Check that a figure can be drawn; called before decoding.

    Raises:
        RequestError: for an unknown suffix, or if matplotlib isn't installed.
    """
    if path.suffix not in SUFFIXES:
        raise RequestError(f"{path}: a figure's name ends in {' or '.join(SUFFIXES)}")
    needs("matplotlib.figure", "compare", "a picture")


def save(picture: MaskPicture, path: Path) -> None:
    """Draw the mask as SVG or PNG, by the file's suffix.

    Raises:
        RequestError: for an unknown suffix, or if matplotlib isn't installed or the file can't be written.
    """
    check_path(path)
    matplotlib = needs("matplotlib", "compare", "a picture")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the reader's own settings would show
        matplotlib.rcParams.update({"font.family": _FONT, "text.parse_math": False, "svg.hashsalt": "specdec"})
        figure = draw(picture)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        try:
            figure.savefig(path, dpi=160, metadata=metadata)
        except OSError as error:
            raise RequestError(f"{path} can't be written: {error.strerror}") from error


def draw(picture: MaskPicture) -> Any:
    """Draw the mask as a matplotlib figure: a row for each node, a column for the prefix and one for each node."""
    num_nodes, labels = len(picture.visible), row_labels(picture)
    cell = _CELL if num_nodes < _MANY else _SMALL_CELL
    size = cell * 50  # points; a label fills its row
    left = max(map(len, labels)) * size * 0.61 / 72 + 0.4  # inches; a character is 0.6 of its size wide
    across, down = cell * (num_nodes + 2.5), cell * num_nodes
    width = max(left + across + 0.2, len(picture.title) * 0.088 + 0.3)
    height = _ABOVE + down + _BELOW
    figure = needs("matplotlib.figure", "compare", "a picture").Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((left / width, _BELOW / height, across / width, down / height))
    _draw_cells(picture, axes)
    middles = [node + 0.5 for node in range(num_nodes)]
    axes.set_xticks([-1.5, *middles], ["prefix", *map(str, range(num_nodes))], rotation=90, fontsize=size)
    axes.set_yticks(middles, labels, fontsize=size)
    for node, label in enumerate(axes.get_yticklabels()):
        label.set_fontweight("bold" if node in picture.step.path[1:] else "normal")
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    layers = f", {picture.layers} layers" if picture.layers else ""
    below = f"{plural(num_nodes, 'node')}, root at position {picture.step.prefix_length}{layers}"
    figure.text(0.1 / width, 1 - 0.26 / height, picture.title, fontsize=10, fontweight="bold")
    figure.text(0.1 / width, 1 - 0.45 / height, below, fontsize=8.5)
    axes.set_ylabel("a node: token, roles, depth, number", fontsize=8.5)
    axes.set_xlabel("what it sees: the prefix, and nodes by number", fontsize=8.5, loc="left")
    _add_legend(picture, figure)
    return figure


def _draw_cells(picture: MaskPicture, axes: Any) -> None:
    """Draw a rectangle for every entry: in the node's colour if visible, else nearly white."""
    num_nodes, names = len(picture.visible), list(COLOURS)
    palette = needs("matplotlib.colors", "compare", "a picture").ListedColormap(["#F2F2F2", *COLOURS.values()])
    own = np.array([names.index(role) + 1 for role in picture.roles])
    style = {"cmap": palette, "vmin": -0.5, "vmax": len(names) + 0.5, "edgecolors": "white", "linewidth": 0.6}
    rows = np.arange(num_nodes + 1)
    axes.pcolormesh(rows, rows, np.where(picture.visible, own[:, None], 0), **style)
    axes.pcolormesh([-2.5, -0.5], rows, (picture.prefix > 0)[:, None].astype(int), **style)
    axes.set_xlim(-2.5, num_nodes)
    axes.set_ylim(num_nodes, 0)


def _add_legend(picture: MaskPicture, figure: Any) -> None:
    patch = needs("matplotlib.patches", "compare", "a picture").Patch
    shown = ["prefix", *(role for role in COLOURS if role in picture.present)]
    texts = {"prefix": "prefix", "root": "root: the last committed token", "candidate": "candidate: may be accepted"}
    texts |= {
        "probe": "probe: its prediction is returned to the strategy",
        "support": "support: other nodes attend to it",
    }
    handles = [patch(facecolor=COLOURS[role], label=texts[role]) for role in shown]
    handles.append(patch(facecolor="none", label="✓ bold: accepted in this step"))
    place = (0.1 / figure.get_figwidth(), 0.08 / figure.get_figheight())
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=place, fontsize=8, frameon=False, borderaxespad=0)


def row_labels(picture: MaskPicture) -> list[str]:
    """Return each node's token, roles, depth and number, in columns."""
    font_manager = needs("matplotlib.font_manager", "compare", "a picture")
    glyphs = font_manager.get_font(font_manager.findfont(_FONT)).get_charmap()
    tree, rows = picture.step.tree, []
    for node, text in enumerate(picture.step.labels):
        shown = repr(text) if all(ord(character) in glyphs for character in text) else ascii(text)
        mark = "✓ " if node in picture.step.path[1:] else ""
        rows.append((mark + shortened(shown, _LABEL), role_names(tree, node)))
    roles = ["+".join(names) for _, names in rows]
    token_width, role_width = max(len(token) for token, _ in rows), max(map(len, roles))
    return [
        f"{token:>{token_width}}  {names:<{role_width}}  {f'+{depth}':>3}  {node:>3}"
        for node, ((token, _), names, depth) in enumerate(zip(rows, roles, tree.depths, strict=True))
    ]
