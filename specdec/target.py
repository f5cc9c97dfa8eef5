"""The target: a model, the compiler of its passes, and the rows of its cache, as one object.

The decoding loop, draft models, probes and measurements all drive models through a target. A row keeps its handle
while other rows are opened and released.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from specdec.backends.base import Backend, Examination, KVBlock
from specdec.backends.output import Output, OutputRow
from specdec.errors import PluginError
from specdec.inputs.base import PromptInputs
from specdec.layout import Compiler, KeyedDraw, Layout, Shapes
from specdec.numerics import Numerics
from specdec.tree import ROOT, DraftTree, Role

_NO_PREFIXES: Mapping["CacheRow", Sequence[int]] = {}
_NO_DRAWS: Mapping["CacheRow", KeyedDraw | None] = {}


@dataclass(eq=False, slots=True)
class CacheRow:
    """A handle of a sequence in the cache, from ``open`` to ``release``.

    Attributes:
        capacity: the number of tokens that the row may grow to.
        length: the number of committed tokens.
        is_waiting: True while a context holds the row for its next request.
        inputs: what its prompt holds besides tokens; None for text alone.
    """

    capacity: int
    length: int = 0
    is_waiting: bool = False
    inputs: PromptInputs | None = None


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A compiled forward pass.

    Attributes:
        rows: the consecutive rows of the pass. A row without a tree is there only because it lies between two that
            have one; it is fed one node, which is discarded.
        num_prefix: by row, the number of tokens fed before the tree's root.
    """

    layout: Layout
    rows: tuple[CacheRow, ...]
    num_prefix: Mapping[CacheRow, int]


class PassOutput:
    """The output of a pass.

    Attributes:
        planned: the pass.
        rows: each row's output, addressed by the nodes of the row's tree.
        num_reread: by row, the committed tokens that the pass read again; empty if there are none.
        num_passes: passes of the model.
        num_positions: cache slots that the longest row's nodes can see.
        width: tokens read for the widest row, without padding: its nodes, and those that it read again.
    """

    def __init__(self, planned: PlannedPass, output: Output) -> None:
        layout, num_nodes, num_reread = planned.layout, planned.layout.num_nodes, output.num_reread
        self.num_positions = max(layout.lengths) + layout.width
        self.width = max(map(sum, zip(num_nodes, num_reread, strict=True)) if num_reread else num_nodes)
        self.planned = planned
        self.num_reread, self.num_passes = output.num_reread, output.num_passes
        self.rows = {
            row: OutputRow(output, number, planned.num_prefix[row])
            for number, row in enumerate(planned.rows)
            if row in planned.num_prefix
        }
        self._output = output

    def fetch(self, nodes: Mapping[CacheRow, Sequence[int]]) -> None:
        """Copy the logits at some nodes of each row to the host in one transfer; later reads use the copies."""
        rows = self.rows
        self._output.fetch([(rows[row].row, rows[row].num_prefix + node) for row in nodes for node in nodes[row]])


class Target:
    """A backend with its mask compiler, driven by rows and trees.

    Args:
        examination: default: what the backend knows itself.
        on_close: called after the backend is closed.

    Attributes:
        examination: the facts about the passes, as they were found when the backend was loaded.
        author: the plug-ins to name when a pass raises.
    """

    def __init__(
        self,
        backend: Backend,
        compiler: Compiler,
        examination: Examination | None = None,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        self.backend = backend
        self.compiler = compiler
        self.examination = examination or backend.examination
        self._on_close = on_close
        self._is_closed = False
        self._rows: list[CacheRow] = []  # in the backend's order
        self.author = f"backend {type(backend).__name__} with {type(compiler).__name__}"

    @property
    def shapes(self) -> Shapes:
        """The facts of the model that drafts and layouts need: vocabulary, positions, dtype, device."""
        return self.backend.shapes

    @property
    def numerics(self) -> Numerics:
        """The numerics of the passes, as they were found when the backend was loaded."""
        found = self.examination
        if self.compiler.bit_exact:
            return Numerics("exact", found.inexact, found.noise or 0.0)
        return Numerics("fast", found.inexact or "fast numerics don't promise it", found.noise or 0.0)

    @property
    def is_warm(self) -> bool:
        """False while the backend is still warming up for passes like the last one."""
        return self.backend.is_warm

    @property
    def rows(self) -> tuple[CacheRow, ...]:
        """The open rows."""
        return tuple(self._rows)

    @property
    def is_decoding(self) -> bool:
        """True while any open row belongs to a running request."""
        return not all(row.is_waiting for row in self._rows)

    def open(self, capacity: int) -> CacheRow:
        """Open an empty row for up to ``capacity`` tokens."""
        self.check_rows()
        row = CacheRow(capacity)
        self.backend.open(capacity)
        self._rows.append(row)
        return row

    def set_inputs(self, row: CacheRow, inputs: PromptInputs | None) -> None:
        """Set what a row's prompt holds besides tokens, before it is read further."""
        if row.inputs is not inputs:
            self.backend.set_inputs(self._rows.index(row), inputs)
            row.inputs = inputs

    def compile(
        self,
        trees: Mapping[CacheRow, DraftTree],
        prefixes: Mapping[CacheRow, Sequence[int]] = _NO_PREFIXES,
        hidden: Sequence[int] = (),
        wanted_prefixes: Collection[CacheRow] = (),
        chunks: Collection[CacheRow] = (),
        num_top: int = 0,
        draws: Mapping[CacheRow, KeyedDraw | None] = _NO_DRAWS,
    ) -> PlannedPass:
        """Compile one pass over a tree per row.

        Args:
            trees: by row; each root follows the row's committed tokens and prefix.
            prefixes: by row, tokens before the tree's root that aren't cached yet.
            hidden: layers whose hidden states are wanted.
            wanted_prefixes: rows for which the logits at the prefix's tokens are wanted as well.
            chunks: rows whose tree is a chunk of a prompt, which is committed whole.
            num_top: the ``k`` of later ``top_logits(node, k)``, which then need no copy of their own.
            draws: by row, how its tokens may be drawn.
        """
        self.check_rows()
        numbers = [self._rows.index(row) for row in trees]
        first = min(numbers)
        rows = tuple(self._rows[first : max(numbers) + 1])
        grown = [trees[row] if row in trees else DraftTree(0) for row in rows]
        for number, row in enumerate(rows):
            if prefix := prefixes.get(row):
                grown[number] = grown[number].below(prefix, row in wanted_prefixes)
            if row.inputs is not None and row in trees:
                grown[number].blocks = row.inputs.blocks_from(row.length)
                grown[number].block_kinds = row.inputs.block_kinds
        layout = self.compiler.compile(grown, [row.length for row in rows], self.shapes)
        lengths = tuple(
            len(tree) if row in chunks else len(prefixes.get(row, ())) for row, tree in zip(rows, grown, strict=True)
        )
        lengths = lengths if any(lengths) else ()
        layout = replace(
            layout,
            first=first,
            hidden=tuple(hidden),
            num_top=num_top,
            draws=tuple(map(draws.get, rows)) if any(draws.values()) else (),
            trees=tuple(grown),
            num_prefix=lengths,
        )
        return PlannedPass(layout, rows, {row: len(prefixes.get(row, ())) for row in trees})

    def forward(self, planned: PlannedPass) -> PassOutput:
        """Run a pass."""
        output = self.backend.forward(planned.layout)
        output.num_top = planned.layout.num_top
        return PassOutput(planned, output)

    def commit(self, planned: PlannedPass, paths: Mapping[CacheRow, Sequence[int]]) -> None:
        """Commit the prefix and a path of the tree, root first, for some rows of the last pass.

        The other rows keep nothing.
        """
        kept = [
            [*range(planned.num_prefix[row]), *(node + planned.num_prefix[row] for node in paths[row])]
            if row in paths
            else []
            for row in planned.rows
        ]
        self.backend.commit(kept)
        for row, path in zip(planned.rows, kept, strict=True):
            row.length += len(path)

    def chunk_after(self, row: CacheRow, tokens: Sequence[int]) -> Sequence[int]:
        """Return the next whole chunk of a text whose first tokens a row holds, or nothing if less is left.

        No chunk contains the text's last token, which is the root of the first tree.
        """
        end = row.length - row.length % self.shapes.chunk + self.shapes.chunk
        end = end if row.inputs is None else row.inputs.chunk_end(end)
        return tokens[row.length : end] if end < len(tokens) else ()

    def read(self, row: CacheRow, tokens: Sequence[int], wanted: Sequence[int] = (ROOT,)) -> OutputRow:
        """Append tokens to a row in one pass; return the output at the ``wanted`` ones."""
        chain = DraftTree(tokens[0])
        nodes = [ROOT, *chain.add_chain(ROOT, tokens[1:], Role.SUPPORT)]
        chain.wanted = wanted
        planned = self.compile({row: chain}, chunks=[row])
        output = self.forward(planned).rows[row]
        self.commit(planned, {row: nodes})
        return output

    def read_all(self, row: CacheRow, tokens: Sequence[int]) -> OutputRow:
        """Append a text to an empty row, chunk by chunk; return the output at its last token, as node 0."""
        while chunk := self.chunk_after(row, tokens):
            self.read(row, chunk)
        planned = self.compile({row: DraftTree(tokens[-1])}, {row: tokens[row.length : -1]})
        output = self.forward(planned).rows[row]
        self.commit(planned, {row: (ROOT,)})
        return output

    def rollback(self, row: CacheRow, length: int) -> None:
        """Drop a row's tokens after the first ``length``."""
        self.backend.rollback(self._rows.index(row), length)
        row.length = length

    def copy_block(self, row: CacheRow, start: int, stop: int) -> KVBlock:
        """Copy the keys and values of a row's tokens from ``start`` to ``stop``."""
        return self.backend.copy_block(self._rows.index(row), start, stop)

    def append_blocks(self, row: CacheRow, held: Sequence[KVBlock], num_tokens: int) -> None:
        """Append copies of the keys and values of ``num_tokens`` tokens to a row, as if it had read these tokens."""
        self.backend.append_blocks(self._rows.index(row), held)
        row.length += num_tokens

    def clear(self, row: CacheRow) -> None:
        """Overwrite the keys and values of a row's dropped nodes, because NaN passes through masks."""
        self.backend.clear(self._rows.index(row))

    def release(self, row: CacheRow) -> None:
        """Close a row."""
        number, last = self._rows.index(row), self._rows.pop()
        if row is not last:
            self._rows[number] = last
        self.backend.release(number)

    def check_rows(self) -> None:
        """Raise PluginError if the backend failed to open or release a row: the numbers of other rows are wrong."""
        found, expected = self.backend.num_rows, len(self._rows)
        if found != expected:
            raise PluginError(f"{self.author} has {found} rows, {expected} expected: make another generator")

    def close(self) -> None:
        """Close the backend; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.backend.close()
        finally:
            if self._on_close is not None:
                self._on_close()
