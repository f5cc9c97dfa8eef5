"""Draws masks, steps and races as text for the terminal, readable without colour."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from specdec.errors import plural

if TYPE_CHECKING:
    from specdec.apps.pictures.mask import MaskPicture
    from specdec.apps.pictures.race import Lane
    from specdec.apps.pictures.trace import Branch, TraceStep

_STYLES = {"prefix": "dim", "root": "bold", "candidate": "green", "probe": "magenta", "support": "cyan"}
_MEANINGS = {
    "root": "the last committed token",
    "candidate": "may be accepted",
    "probe": "its prediction is returned to the strategy",
    "support": "other nodes attend to it",
}
_SOURCE_STYLES = ("blue", "magenta", "cyan", "yellow", "red")
_TOKEN = 12  # cells of a token's text in a mask
_FEWEST_COLUMNS = 8  # nodes shown even in a narrow terminal
_LANE_HEIGHT = 18


def mask_lines(picture: "MaskPicture", width: int) -> Iterator[Text]:
    """Return the mask as lines of at most ``width`` cells, a row and a column per node; of many, the outer ones."""
    num_nodes, step = len(picture.visible), picture.step
    yield Text(picture.title, style="bold")
    yield Text(
        f"{plural(num_nodes, 'node')} after a prefix of {plural(step.prefix_length, 'token')}; "
        "a row shows what its node sees"
    )
    if picture.layers:
        yield Text(f"layers of the kind {picture.layers}")
    yield Text()
    labels = [_row_label(picture, node) for node in range(num_nodes)]
    room = max(_FEWEST_COLUMNS, width - max(cell_len(label) for label in labels) - 5)
    cell = 2 if 2 * num_nodes <= room else 1
    head = num_nodes if cell * num_nodes <= room else (room - 1) // 2
    shown = [*range(head), *range(max(head, num_nodes - head), num_nodes)]
    gap = head if len(shown) < num_nodes else -1  # index in ``shown`` before which nodes are left out
    yield from _headings(shown, gap, cell, len(labels[0]))
    for place, node in enumerate(shown):
        if place == gap:
            yield Text(
                f"  ⋮ {plural(num_nodes - len(shown), 'node')} more: --out FILE.svg draws all of them",
                style="dim",
            )
        line = Text.assemble((labels[node], _STYLES[picture.roles[node]]), " ")
        yield line.append_text(_row(picture, node, shown, gap, cell))
    yield Text()
    yield from _legend(picture)


def _row(picture: "MaskPicture", node: int, shown: list[int], gap: int, cell: int) -> Text:
    """Return a node's row of the mask: its view of the prefix, and of each node shown."""
    row = Text.assemble((_share(picture.prefix[node]) * 2, _STYLES["prefix"]), " ")
    for column, other in enumerate(shown):
        row.append(" " if column == gap else "")
        is_seen = picture.visible[node, other]
        row.append("█" * cell if is_seen else "·".ljust(cell), _STYLES[picture.roles[node]] if is_seen else "dim")
    return row


def _share(seen: float) -> str:
    """Return how much of the prefix is visible: all, some (with a sliding window) or none."""
    return "█" if seen == 1 else "▒" if seen else "·"


def _row_label(picture: "MaskPicture", node: int) -> str:
    """Return mark, number, depth, roles and token in columns."""
    from specdec.apps.pictures.trace import role_names

    step = picture.step
    mark = "✓" if node in step.path[1:] else " "
    letters = "".join(name[0].upper() for name in role_names(step.tree, node))
    return f"{mark}{node:>3} +{step.tree.depths[node]:<2} {letters:<3} {_fitted(step.labels[node], _TOKEN)}"


def _fitted(text: str, size: int) -> str:
    shown = repr(text)
    return set_cell_size(shown, size) if cell_len(shown) <= size else set_cell_size(shown, size - 1) + "…"


def _headings(shown: Sequence[int], gap: int, cell: int, indent: int) -> Iterator[Text]:
    """Return the nodes' numbers, with digits one below the other."""
    num_digits = len(str(shown[-1]))
    for digit in range(num_digits):
        is_last = digit == num_digits - 1
        start = "node dep role token".ljust(indent + 1) + "px " if is_last else " " * (indent + 4)
        columns = (
            (" " if place == gap else "") + str(node).rjust(num_digits)[digit].ljust(cell)
            for place, node in enumerate(shown)
        )
        yield Text(start + "".join(columns), style="dim")


def _legend(picture: "MaskPicture") -> Iterator[Text]:
    yield Text.assemble("px ", ("██", _STYLES["prefix"]), " prefix;  +1 depth below the root;  ✓ accepted in this step")
    for role, meaning in _MEANINGS.items():
        if role in picture.present:
            yield Text.assemble((f"{role[0].upper()}  ██ {role}", _STYLES[role]), f": {meaning}")


def step_lines(
    step: "TraceStep", number: int, before: str, all_nodes: bool, width: int, letters: Mapping[str, str]
) -> Iterator[RenderableType]:
    """Return a step's tree, committed tokens and end of text; ``letters`` represent a merge's strategies."""
    from specdec.tree import ROOT, Role

    heading = Text.assemble((f"step {number}", "bold"), "  ", _token(step.labels[ROOT], "bold reverse"))
    role = Role.CANDIDATE | Role.PROBE | Role.SUPPORT if all_nodes else Role.CANDIDATE
    if step.num_left_out and not all_nodes:
        heading.append(f"  and {step.num_left_out} probe and support nodes, not shown", style="dim")
    tree = Tree(heading, guide_style="dim")
    _grow(tree, step.branches(role), step, letters)
    yield tree
    committed = Text("  committed: ")
    for place, label in enumerate(step.token_labels):
        is_accepted = place < step.num_accepted
        committed.append_text(_token(label, "green" if is_accepted else "yellow"))
        committed.append(" ✓ " if is_accepted else " (the model's own)")
    yield committed
    fresh = _one_line(step.text)
    shown = Text("  text: ")
    room = max(0, width - len(shown) - cell_len(fresh) - 2)
    shown.append(_end_of(_one_line(before), room), style="dim").append(fresh, style="bold green")
    yield shown


def source_key(letters: Mapping[str, str]) -> Text:
    """Return the legend of the letters after tokens."""
    key = Text("  proposed by: ", style="dim")
    for name, letter in letters.items():
        key.append(f"{letter} ", style=_source_style(letter, letters)).append(f"{name}  ", style="dim")
    return key


def _source_style(letter: str, letters: Mapping[str, str]) -> str:
    return _SOURCE_STYLES[list(letters.values()).index(letter) % len(_SOURCE_STYLES)]


def _grow(tree: Tree, branches: Sequence["Branch"], step: "TraceStep", letters: Mapping[str, str]) -> None:
    """Add branches below a node; nodes up to the next fork share a line."""
    for branch in branches:
        line = Text()
        for node in branch.nodes:
            is_accepted = node in step.path
            line.append_text(_token(step.labels[node], "bold green" if is_accepted else ""))
            for name in step.named_by(node):
                line.append(letters[name], style=_source_style(letters[name], letters))
            line.append(" ✓ " if is_accepted else " ", style="green")
        _grow(tree.add(line), branch.children, step, letters)


def _token(label: str, style: str) -> Text:
    return Text(repr(label), style=style)


def _end_of(text: str, room: int) -> str:
    """Return the end of a line that fits in ``room`` cells."""
    if cell_len(text) <= room:
        return text
    while text and cell_len(text) >= room:
        text = text[1:]
    return f"…{text}"


def _one_line(text: str) -> str:
    """Return a text with visible line ends and without control characters."""
    return "".join("⏎" if character == "\n" else character if character.isprintable() else " " for character in text)


def panels(lanes: Sequence["Lane"], console: Console) -> Table:
    """Return the lanes' panels side by side, each with the end of its text and its figures."""
    grid = Table.grid(expand=True)
    height = max(5, min(_LANE_HEIGHT, console.height - 4))
    for _ in lanes:
        grid.add_column(ratio=1)
    width = console.width // len(lanes) - 4
    grid.add_row(*(_panel(lane, console, width, height) for lane in lanes))
    return grid


def _panel(lane: "Lane", console: Console, width: int, height: int) -> Panel:
    text = "".join(character if character.isprintable() or character in "\n\t" else " " for character in lane.text)
    lines = Text(text).wrap(console, width, tab_size=4)[-(height - 2) :]
    is_done = lane.result is not None
    return Panel(
        Text("\n").join(lines),
        title=Text(lane.name, style="bold"),
        subtitle=Text(("done: " if is_done else "") + _short(lane)),
        border_style="green" if is_done else "dim",
        height=height,
    )


def _short(lane: "Lane") -> str:
    return f"{plural(len(lane.token_ids), 'token')}, {lane.tokens_per_second:.0f}/s, {lane.tokens_per_step:.2f} a step"


def lane_line(lane: "Lane") -> str:
    """Return a lane's figures in a line."""
    return (
        f"{lane.name}: {plural(len(lane.token_ids), 'token')} in {plural(lane.num_steps, 'step')} "
        f"and {lane.seconds:.2f} s, "
        f"{lane.tokens_per_second:.0f} tokens per second, {lane.tokens_per_step:.2f} tokens per step"
    )
