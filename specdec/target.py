"""The target: a model with the compiler that lays out its passes, and the rows of its cache.

The loop, draft models, probes and measurements all drive models through it. A row is a handle that stays the same
while others come and go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from specdec.backends.base import Backend, Held, OutputRow
from specdec.errors import PluginError
from specdec.layout import Compiler, Layout, Shapes
from specdec.tree import ROOT, DraftTree, Role

_NO_TRUNKS: Mapping["Row", Sequence[int]] = {}


class Row:
    """A sequence in the cache, from ``open`` to ``release``; ``length`` tokens are committed.

    One that ``is_waiting`` belongs to a request that is yet to come.
    """

    __slots__ = ("capacity", "is_waiting", "length")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.is_waiting = False

    def __repr__(self) -> str:
        return f"Row({self.length} of {self.capacity})"


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass, laid out.

    Attributes:
        rows: the consecutive rows that the pass covers. A row without a tree is included only because it lies between
            two that have one; it is fed one node, which is discarded.
        trunks: by row, the number of nodes before the tree's own.
    """

    layout: Layout
    rows: tuple[Row, ...]
    trunks: Mapping[Row, int]

    @property
    def num_positions(self) -> int:
        """Slots that the longest row's nodes can see."""
        return max(self.layout.lengths) + self.layout.width


class Target:
    """A backend and a mask compiler, as one object that is driven by rows and trees.

    ``on_close`` is called once the backend is closed.
    """

    def __init__(self, backend: Backend, compiler: Compiler, on_close: Callable[[], object] | None = None) -> None:
        self.backend = backend
        self.compiler = compiler
        self._on_close = on_close
        self._is_closed = False
        self._rows: list[Row] = []  # in the backend's order
        # The plug-ins behind whatever a pass raises: modelling code, a mask compiler, a lack of memory.
        self.author = f"backend {type(backend).__name__} with {type(compiler).__name__}"

    @property
    def shapes(self) -> Shapes:
        """The facts of the model that drafts and layouts need: vocabulary, positions, dtype, device."""
        return self.backend.shapes

    @property
    def is_settled(self) -> bool:
        """False after a pass such that others like it will be faster later."""
        return self.backend.is_settled

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that are open."""
        return tuple(self._rows)

    @property
    def is_decoding(self) -> bool:
        """True while a row is open that doesn't wait."""
        return not all(row.is_waiting for row in self._rows)

    def open(self, capacity: int) -> Row:
        """Open an empty row that may grow to ``capacity`` committed tokens."""
        self.check_rows()
        row = Row(capacity)
        self.backend.open(capacity)
        self._rows.append(row)
        return row

    def compile(
        self,
        trees: Mapping[Row, DraftTree],
        trunks: Mapping[Row, Sequence[int]] = _NO_TRUNKS,
        hidden: Sequence[int] = (),
    ) -> Pass:
        """Lay out one pass over a tree for each of some rows, behind the row's committed tokens.

        Args:
            trees: by row; their roots come behind what is committed.
            trunks: by row, committed text before the tree's root that the cache doesn't hold yet.
            hidden: the layers whose hidden states are wanted.
        """
        self.check_rows()
        numbers = [self._rows.index(row) for row in trees]
        first = min(numbers)
        rows = tuple(self._rows[first : max(numbers) + 1])
        grown = [trees[row].below(trunks.get(row, ())) if row in trees else DraftTree(0) for row in rows]
        layout = self.compiler.compile(grown, [row.length for row in rows], self.shapes)
        layout = replace(layout, first=first, hidden=tuple(hidden), trees=tuple(grown))
        return Pass(layout, rows, {row: len(trunks.get(row, ())) for row in trees})

    def forward(self, planned: Pass) -> dict[Row, OutputRow]:
        """Run a pass; the answers by row, addressed by the nodes of its tree."""
        output = self.backend.forward(planned.layout)
        return {
            row: OutputRow(output, number, planned.trunks[row])
            for number, row in enumerate(planned.rows)
            if row in planned.trunks
        }

    def keep(self, planned: Pass, paths: Mapping[Row, Sequence[int]]) -> None:
        """Commit the trunk and a path of the tree, root first, for each of some rows of the last pass.

        A row that isn't among them keeps nothing.
        """
        kept = [
            [*range(planned.trunks[row]), *(node + planned.trunks[row] for node in paths[row])] if row in paths else []
            for row in planned.rows
        ]
        self.backend.keep(kept)
        for row, path in zip(planned.rows, kept, strict=True):
            row.length += len(path)

    def chunk_behind(self, row: Row, tokens: Sequence[int]) -> Sequence[int]:
        """Return the next whole chunk of a text that a row holds the beginning of; empty where less is left.

        The text's last token is a tree's root, which no chunk contains.
        """
        end = row.length - row.length % self.shapes.chunk + self.shapes.chunk
        return tokens[row.length : end] if end < len(tokens) else ()

    def read(self, row: Row, tokens: Sequence[int], wanted: Sequence[int] = (ROOT,)) -> OutputRow:
        """Commit tokens behind a row's in one pass; the answers at some of them, by default the first."""
        chain = DraftTree(tokens[0])
        nodes = [ROOT, *chain.add_chain(ROOT, tokens[1:], Role.SUPPORT)]
        chain.wanted = wanted
        planned = self.compile({row: chain})
        answers = self.forward(planned)[row]
        self.keep(planned, {row: nodes})
        return answers

    def read_all(self, row: Row, tokens: Sequence[int]) -> OutputRow:
        """Commit a text to an empty row, chunk by chunk; the answers at its last token, as a root's."""
        while chunk := self.chunk_behind(row, tokens):
            self.read(row, chunk)
        planned = self.compile({row: DraftTree(tokens[-1])}, {row: tokens[row.length : -1]})
        answers = self.forward(planned)[row]
        self.keep(planned, {row: (ROOT,)})
        return answers

    def rollback(self, row: Row, length: int) -> None:
        """Take a row's committed tokens back to the first ``length``."""
        self.backend.rollback(self._rows.index(row), length)
        row.length = length

    def hold(self, row: Row, start: int, stop: int) -> Held:
        """A copy of the keys and values of some of a row's committed tokens."""
        return self.backend.hold(self._rows.index(row), start, stop)

    def put(self, row: Row, held: Sequence[Held], num_tokens: int) -> None:
        """Commit copies of so many tokens' keys and values behind a row's, as if it had read these tokens."""
        self.backend.put(self._rows.index(row), held)
        row.length += num_tokens

    def clear(self, row: Row) -> None:
        """Overwrite what a row's dropped nodes left behind, where a mask can't hide it: NaN reaches any sum."""
        self.backend.clear(self._rows.index(row))

    def release(self, row: Row) -> None:
        """Close a row."""
        number, last = self._rows.index(row), self._rows.pop()
        if row is not last:
            self._rows[number] = last
        self.backend.release(number)

    def check_rows(self) -> None:
        """Refuse to go on where the backend has failed to open or release a row: the others' numbers are wrong then."""
        held, known = self.backend.num_rows, len(self._rows)
        if held != known:
            raise PluginError(f"{self.author} holds {held} rows where {known} are open: make another generator")

    def close(self) -> None:
        """Let go of the model, which isn't driven by this target again; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.backend.close()
        finally:
            if self._on_close is not None:
                self._on_close()
