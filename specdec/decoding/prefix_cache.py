"""The prefix cache: keys and values of texts, in blocks, for later requests with a common prefix.

A block is a stretch of text after a given prefix, so requests that share a system prompt share its blocks. A request's
row gets copies of the blocks and prefills the rest. In exact numerics a token's keys and values depend on the text
alone, and a copy changes no bit.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from specdec.backends.base import Held
from specdec.errors import in_one_line
from specdec.target import CacheRow, Target

_BLOCK = 32  # tokens: a request recomputes less than a block of what it shares


@dataclass(slots=True, eq=False)
class _Block:
    """Keys and values of ``tokens``, which follow the text of ``parent`` and end at position ``end``."""

    parent: Optional["_Block"]
    end: int
    tokens: tuple[int, ...]
    held: Held
    children: "dict[tuple[int, ...], _Block]" = field(default_factory=dict)


class Prefixes:
    """The cached blocks of a target; the least recently used are dropped when memory is needed.

    Args:
        target: whose rows are copied; nothing is cached unless its backend ``holds_prefixes``.
        max_bytes: of all blocks.

    Attributes:
        num_bytes: of the cached blocks.
    """

    def __init__(self, target: Target, max_bytes: int) -> None:
        self._target = target
        self._max_bytes = max_bytes if target.backend.holds_prefixes else 0
        self._roots: dict[tuple[int, ...], _Block] = {}
        self._blocks = OrderedDict[_Block, None]()  # by last use, each before its parent: the first has no children
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def fill(self, row: CacheRow, tokens: Sequence[int]) -> None:
        """Fill an empty row with the cached prefix of a text, excluding its last token, which is the root.

        If that fails, the row stays empty and the cache is disabled.
        """
        known = list(self._known(tokens[:-1]))
        if not known:
            return
        self._touch(known[-1])
        try:
            self._target.put(row, [block.held for block in known], len(known) * _BLOCK)
        except Exception as error:  # memory, or a backend's code
            self._give_up(error)
            self._target.rollback(row, 0)

    def save(self, row: CacheRow, tokens: Sequence[int]) -> None:
        """Copy whole blocks of a row into the cache, as far as there is room; ``tokens`` are its request's."""
        if not self._max_bytes:
            return
        try:
            self._save(row, tokens[: row.length])
        except Exception as error:  # as above
            self._give_up(error)

    def _save(self, row: CacheRow, text: Sequence[int]) -> None:
        *_, last = None, *self._known(text)
        self._touch(last)  # so that none of them is dropped for a later block
        begin = 0 if last is None else last.end
        try:
            for start in range(begin, row.length - _BLOCK + 1, _BLOCK):
                held = self._target.hold(row, start, start + _BLOCK)
                if (start // _BLOCK + 1) * held.num_bytes > self._max_bytes:
                    return
                self._make_room(held.num_bytes)
                block = _Block(last, start + _BLOCK, tuple(text[start : start + _BLOCK]), held)
                self._siblings(last)[block.tokens] = block
                self._blocks[block] = None
                self.num_bytes += held.num_bytes
                last = block
        finally:
            self._touch(last)

    def _make_room(self, num_bytes: int) -> None:
        while self._blocks and self.num_bytes + num_bytes > self._max_bytes:
            self._drop_oldest()

    def clear(self) -> None:
        """Drop all blocks."""
        self.num_bytes = 0
        self._roots.clear()
        self._blocks.clear()

    def _give_up(self, error: Exception) -> None:
        warnings.warn(f"the prefix cache is disabled: {in_one_line(error)}", stacklevel=2)
        self._max_bytes = 0
        self.clear()

    def _known(self, text: Sequence[int]) -> Iterator[_Block]:
        """The cached blocks of a text's prefix."""
        last: _Block | None = None
        for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
            last = self._siblings(last).get(tuple(text[start : start + _BLOCK]))
            if last is None:
                return
            yield last

    def _siblings(self, parent: _Block | None) -> dict[tuple[int, ...], _Block]:
        return self._roots if parent is None else parent.children

    def _touch(self, block: _Block | None) -> None:
        """Mark a block and those before it as used, the first of the text last."""
        while block is not None:
            self._blocks.move_to_end(block)
            block = block.parent

    def _drop_oldest(self) -> None:
        block, _ = self._blocks.popitem(last=False)
        assert not block.children, "a block is used whenever a later one is"
        del self._siblings(block.parent)[block.tokens]
        self.num_bytes -= block.held.num_bytes
