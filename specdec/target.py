"""A model of a proposer's own, driven as the target is: rows of committed tokens, and trees forwarded behind them."""

from collections.abc import Sequence

from specdec.backends.base import Backend, OutputRow
from specdec.layout import Compiler, Layout, Shapes
from specdec.tree import ROOT, DraftTree


class Driver:
    """Numbered rows without gaps; row b holds ``lengths[b]`` committed tokens.

    Trees are forwarded for all rows at once and committed, or dropped, by ``keep``; ``rollback`` takes tokens back.
    """

    def __init__(self, backend: Backend, compiler: Compiler) -> None:
        self._backend = backend
        self._compiler = compiler
        self.lengths: list[int] = []

    @property
    def shapes(self) -> Shapes:
        """The facts of the model that drafts and layouts need: vocabulary, positions, dtype, device."""
        return self._backend.shapes

    @property
    def is_settled(self) -> bool:
        """False after a pass such that others like it will be faster later."""
        return self._backend.is_settled

    def open(self, tokens: Sequence[int], capacity: int) -> OutputRow:
        """Open the next row with tokens, at least one; ``capacity`` is the number that it may grow to.

        Returns the logits behind them, as those of the root.
        """
        self.lengths.append(len(tokens))
        output = self._backend.prefill(tokens, DraftTree(tokens[-1]), capacity)
        self._backend.keep([*(() for _ in self.lengths[:-1]), (ROOT,)])
        return output.row(0)

    def forward(self, trees: Sequence[DraftTree]) -> list[OutputRow]:
        """One pass over a tree for each row, whose root comes behind the row's committed tokens."""
        output = self._backend.forward(self.lay_out(trees, self.lengths))
        return [output.row(row) for row in range(len(trees))]

    def lay_out(self, trees: Sequence[DraftTree], lengths: Sequence[int]) -> Layout:
        """Return the layout of a forward over a tree per row, that of row b behind ``lengths[b]`` committed tokens."""
        return self._compiler.compile(trees, lengths, self.shapes)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit each row's path of the last forward, root first; an empty path commits nothing."""
        self._backend.keep(paths)
        for row, path in enumerate(paths):
            self.lengths[row] += len(path)

    def rollback(self, row: int, length: int) -> None:
        """Take a row's committed tokens back to the first ``length``."""
        self._backend.rollback(row, length)
        self.lengths[row] = length

    def release(self, row: int) -> None:
        """Close a row; the last one takes its number."""
        self._backend.release(row)
        self.lengths[row] = self.lengths[-1]
        self.lengths.pop()
