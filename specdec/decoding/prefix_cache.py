"""The prefix cache: keys and values of texts, in blocks, for later requests with a common prefix.

A block is a stretch of text after a given prefix, so requests that share a system prompt share its blocks. A request's
row gets copies of the blocks and prefills the rest. In exact numerics a token's keys and values depend on the text
alone, and a copy changes no bit.

A strategy that reads prompts has its own state retained with each block, and reuses the blocks that have it.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Optional
from weakref import WeakKeyDictionary

from specdec.backends.base import Held
from specdec.decoding.plan import Strategy
from specdec.decoding.retention import Retention
from specdec.errors import in_one_line
from specdec.strategies.retained import Retained
from specdec.target import CacheRow, Target

_BLOCK = 32  # tokens: a request recomputes less than a block of what it shares


@dataclass(slots=True, eq=False)
class _Block:
    """Keys and values of ``tokens``, which follow the text of ``parent`` and end at position ``end``.

    Attributes:
        num_bytes: of keys, values and states.
        states: by strategy, about the block's positions and the one before them, without the last: the state at a
            position may depend on the next token.
    """

    parent: Optional["_Block"]
    end: int
    tokens: tuple[int, ...]
    held: Held
    num_bytes: int
    states: WeakKeyDictionary[Strategy, Retained] = field(default_factory=WeakKeyDictionary)
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

    def fill(self, row: CacheRow, tokens: Sequence[int], strategy: Strategy) -> tuple[Retained, ...]:
        """Fill an empty row with the cached prefix of a text, excluding its last token, which is the root.

        If that fails, the row stays empty and the cache is disabled.

        Returns:
            The strategy's state about the row's tokens, block by block. A strategy that reads prompts has the last
            token of the blocks read again.
        """
        known = list(self._known(tokens[:-1]))
        if strategy.reads_prompts:
            known = list(takewhile(lambda block: strategy in block.states, known))
        while known and not known[-1].held.is_resumable:
            known.pop()
        if not known:
            return ()
        self._touch(known[-1])
        try:
            self._target.put(row, [block.held for block in known], len(known) * _BLOCK)
            if strategy.reads_prompts:
                self._target.rollback(row, row.length - 1)
        except Exception as error:  # memory, or a backend's code
            self._give_up(error)
            self._target.rollback(row, 0)
            return ()
        return tuple(block.states[strategy] for block in known) if strategy.reads_prompts else ()

    def save(self, row: CacheRow, tokens: Sequence[int], retention: Retention | None = None) -> None:
        """Copy whole blocks of a row into the cache, as far as there is room; ``tokens`` are its request's.

        Args:
            retention: of the request's drafter, if its strategy reads prompts.
        """
        if not self._max_bytes:
            return
        try:
            last = self._save(row, tokens[: row.length])
            if retention is not None:
                self._save_states(last, retention)
        except Exception as error:  # as above
            self._give_up(error)

    def _save(self, row: CacheRow, text: Sequence[int]) -> _Block | None:
        """Save a text's blocks; returns the last cached one."""
        path = list(self._known(text))
        self._touch(path[-1] if path else None)  # so that none of them is dropped for a later block
        try:
            if self._improve(row, path):
                self._add(row, text, path)
        finally:
            self._touch(path[-1] if path else None)
        return path[-1] if path else None

    def _improve(self, row: CacheRow, path: Sequence[_Block]) -> bool:
        """Improve the copies of a text's blocks by those of a row; False if there is no room."""
        num_bytes = sum(block.num_bytes for block in path)
        for block in path:
            if block.held.is_final:
                continue
            held = block.held.improved(self._target.hold(row, block.end - _BLOCK, block.end))
            num_added = held.num_bytes - block.held.num_bytes
            num_bytes += num_added
            if num_bytes > self._max_bytes:
                return False
            self._make_room(num_added)
            block.held = held
            block.num_bytes += num_added
            self.num_bytes += num_added
        return True

    def _add(self, row: CacheRow, text: Sequence[int], path: list[_Block]) -> None:
        """Add the blocks that follow a text's known ones to the cache and to ``path``, as far as there is room.

        The last one is one that a row can continue from.
        """
        num_bytes, begin = sum(block.num_bytes for block in path), len(path) * _BLOCK
        ends = range(row.length // _BLOCK * _BLOCK, begin, -_BLOCK)
        copies = ((end, self._target.hold(row, end - _BLOCK, end)) for end in ends)
        found = next((each for each in copies if each[1].is_resumable), None)
        if found is None:
            return
        end, last_held = found
        for start in range(begin, end, _BLOCK):
            held = last_held if start + _BLOCK == end else self._target.hold(row, start, start + _BLOCK)
            num_bytes += held.num_bytes
            if num_bytes > self._max_bytes:
                return
            self._make_room(held.num_bytes)
            last = path[-1] if path else None
            block = _Block(last, start + _BLOCK, tuple(text[start : start + _BLOCK]), held, held.num_bytes)
            self._siblings(last)[block.tokens] = block
            self._blocks[block] = None
            self.num_bytes += held.num_bytes
            path.append(block)

    def _save_states(self, last: _Block | None, retention: Retention) -> None:
        """Add a strategy's states to the blocks up to ``last``, from the text's first, while other blocks make room."""
        path = list[_Block]()
        while last is not None:
            path.append(last)
            last = last.parent
        for block in reversed(path):
            if retention.strategy in block.states:
                continue
            state = retention.state(max(block.end - _BLOCK - 1, 0), block.end - 1)
            if state is None:
                return
            while self.num_bytes + state.num_bytes > self._max_bytes:
                if next(iter(self._blocks)) in path:
                    return
                self._drop_oldest()
            block.states[retention.strategy] = state
            block.num_bytes += state.num_bytes
            self.num_bytes += state.num_bytes

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
        self.num_bytes -= block.num_bytes
