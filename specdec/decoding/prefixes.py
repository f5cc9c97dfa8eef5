"""Prefixes: keys and values of what requests have read, kept in blocks for later requests that begin alike.

A block is a stretch of text behind all that came before it, so requests that share a system prompt share its blocks,
whatever follows. A request's row gets copies, and reads only what no block has. In exact numerics a token's keys and
values follow from the text alone, and a copy changes no bit.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from specdec.backends.base import Held
from specdec.target import Row, Target

_BLOCK = 32  # tokens: a request reads fewer than these again of what it shares


@dataclass(slots=True, eq=False)
class _Block:
    """Keys and values of some tokens behind the text of ``parent``."""

    parent: Optional["_Block"]
    tokens: tuple[int, ...]
    held: Held
    children: "dict[tuple[int, ...], _Block]" = field(default_factory=dict)


class Prefixes:
    """The blocks that are kept for a target; the least recently used go where they would take too much.

    Args:
        target: whose rows are copied; blocks are kept only where its backend ``holds_prefixes``.
        max_bytes: of all blocks.

    Attributes:
        num_bytes: of the blocks that are kept.
    """

    def __init__(self, target: Target, max_bytes: int) -> None:
        self._target = target
        self._max_bytes = max_bytes if target.backend.holds_prefixes else 0
        self._roots: dict[tuple[int, ...], _Block] = {}
        self._blocks = OrderedDict[_Block, None]()  # by last use, each before its parent: the first has no children
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def fill(self, row: Row, tokens: Sequence[int]) -> None:
        """Give an empty row what is kept of a text, but for the text's last token, which is the request's root."""
        known = list(self._known(tokens[:-1]))
        if known:
            self._touch(known[-1])
            self._target.put(row, [block.held for block in known], len(known) * _BLOCK)

    def save(self, row: Row, tokens: Sequence[int]) -> None:
        """Keep copies of what a row holds, in whole blocks; ``tokens`` are those of its request."""
        if not self._max_bytes:
            return
        text = tokens[: row.length]
        known = list(self._known(text))
        last = known[-1] if known else None
        for start in range(len(known) * _BLOCK, row.length - _BLOCK + 1, _BLOCK):
            held = self._target.hold(row, start, start + _BLOCK)
            block = _Block(last, tuple(text[start : start + _BLOCK]), held)
            self._siblings(last)[block.tokens] = block
            self._blocks[block] = None
            self.num_bytes += held.num_bytes
            last = block
        if last is not None:
            self._touch(last)
        while self.num_bytes > self._max_bytes:
            self._drop_oldest()

    def _known(self, text: Sequence[int]) -> Iterator[_Block]:
        """The blocks that a text begins with."""
        last: _Block | None = None
        for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
            last = self._siblings(last).get(tuple(text[start : start + _BLOCK]))
            if last is None:
                return
            yield last

    def _siblings(self, parent: _Block | None) -> dict[tuple[int, ...], _Block]:
        return self._roots if parent is None else parent.children

    def _touch(self, block: _Block | None) -> None:
        """Note that a block and those before it were used, the first of the text last."""
        while block is not None:
            self._blocks.move_to_end(block)
            block = block.parent

    def _drop_oldest(self) -> None:
        block, _ = self._blocks.popitem(last=False)
        assert not block.children, "a block is used whenever one behind it is"
        del self._siblings(block.parent)[block.tokens]
        self.num_bytes -= block.held.num_bytes
