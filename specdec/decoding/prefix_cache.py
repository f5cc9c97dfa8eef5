"""The prefix cache: keys and values of earlier texts, for requests that begin with the same tokens.

It has entries of two kinds. A context's row waits for the context's next request, which continues it without a copy.
A block is a copy of the keys and values of 32 tokens after a given prefix: requests that share a system prompt copy its
blocks to their rows. Requests prefill only what follows. In exact numerics the keys and values of a token depend on the
text alone, so neither kind changes a bit of the text.

The least recently used entries of a kind are dropped when memory is needed, and all entries once the model has changed.

A strategy that reads prompts has state of its own about each entry, and reuses entries as far as it has state.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import takewhile

from specdec.decoding.context import Context
from specdec.decoding.prefix_block import BLOCK, Block, content_of
from specdec.decoding.request_state import RequestState
from specdec.errors import Guard, SpecdecError
from specdec.inputs.base import Mark, PromptInputs, num_same
from specdec.strategies.request import Retained
from specdec.target import CacheRow, Target

_MAX_ROWS = 16  # a pass also covers the rows between its own


class PrefixCache:
    """The cached texts of a target.

    Args:
        target: whose rows are retained and copied; there are no blocks unless its backend ``holds_prefixes``.
        fingerprint: returns a value that changes whenever the model does.

    Attributes:
        num_bytes: of all blocks with their states.
    """

    def __init__(self, target: Target, fingerprint: Callable[[], Hashable] = lambda: None) -> None:
        self._target, self._fingerprint = target, fingerprint
        self._model: Hashable = None  # its fingerprint
        self._is_checked = False  # the model, since no request was running
        self._contexts: list[Context] = []  # those with rows, by last use
        # By last use, each before its parent: the first has no children.
        self._blocks = OrderedDict[tuple[Block | None, tuple[int | Mark, ...]], Block]()
        self._max_bytes = 0
        self.num_bytes = 0

    @property
    def num_state_bytes(self) -> int:
        """Bytes of the strategies' states in all contexts, in addition to the rows'."""
        return sum(state.num_bytes for context in self._contexts for state in context.states.values())

    def resize(self, max_bytes: int) -> None:
        """Set the bytes that blocks may take, which are none at first; drop those beyond."""
        self._max_bytes = max_bytes if self._target.backend.holds_prefixes else 0
        self._make_room(0)

    def open_row(self, request: RequestState) -> tuple[Retained, ...]:
        """Give a request a row with the longest prefix of its prompt that is cached.

        The prompt's last token is the root, which no row contains.

        Returns:
            The strategy's state about the row's tokens, from the text's beginning, in parts.
        """
        retained: tuple[Retained, ...] = ()
        may_reuse, context = _may_reuse(request), request.context
        self._is_checked &= self._target.is_decoding
        if not self._is_checked and (context is not None or self._max_bytes):
            self._check_model()
        if context is not None and context.row is not None and may_reuse:
            retained = self._continue(request, context)
        if request.row is None:
            request.row = self._target.open(request.capacity)
            self._target.set_inputs(request.row, request.inputs)
            if self._max_bytes and may_reuse:
                retained = self._load_blocks(request, request.row)
        request.row.capacity = max(request.row.capacity, request.capacity)
        request.stats.num_reused = request.num_reported = request.row.length
        return retained

    def close_row(self, request: RequestState) -> None:
        """Take an ended request's row: retain it for the request's context, or save its blocks and release it.

        Nothing is cached if the request failed.
        """
        row, context = request.row, request.context
        if row is None:
            return
        if request.error is None:
            self.save(request)
        request.row = None
        if context is None or context.is_closed or request.error is not None or not row.length:
            self._target.release(row)
            return
        self.drop(context)  # another request of it may have left its row
        state = request.retained_state(0, row.length)
        context.row, context.tokens, row.is_waiting = row, tuple(request.tokens[: row.length]), True
        if state is not None:
            context.states[request.strategy] = state
        self._contexts.append(context)
        if len(self._contexts) > _MAX_ROWS:
            self.drop(self._contexts[0])

    def save(self, request: RequestState) -> None:
        """Copy the whole blocks of a request's row that aren't cached, as far as there is room."""
        if not self._max_bytes or request.row is None:
            return
        with Guard("copying keys and values") as guard:
            path = self._copy_blocks(request.row, request.tokens, request.inputs)
            self._save_states(path, request)
        if guard.error is not None:  # memory, or a backend's code
            self._disable(guard.error)

    def drop(self, context: Context) -> None:
        """Release a context's row, if it has one."""
        if context.row is not None:
            self._target.release(self._detach(context))

    def drop_oldest(self, but: Context | None) -> bool:
        """Release the least recently used row of any context ``but`` one; False if there is none."""
        oldest = next((context for context in self._contexts if context is not but), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def close(self) -> None:
        """Detach all contexts from their rows; called before the target is closed."""
        for context in [*self._contexts]:
            self._detach(context)

    def _check_model(self) -> None:
        """Drop all entries if the model has changed since the last check."""
        self._is_checked = True
        before, self._model = self._model, self._fingerprint()
        if before != self._model:
            while self.drop_oldest(None):
                pass
            self._blocks.clear()
            self.num_bytes = 0

    def _continue(self, request: RequestState, context: Context) -> tuple[Retained, ...]:
        """Give a request its context's row, cut to the common prefix of their texts; release it if there is none.

        The strategy's state at a position may depend on the next token, so the last common one is read again.
        """
        same = takewhile(lambda pair: pair[0] == pair[1], zip(context.tokens, request.tokens[:-1], strict=False))
        assert context.row is not None, "a cached context has a row"
        num_reused = int(min(sum(1 for _ in same), num_same(context.row.inputs, request.inputs)))
        state = context.states.get(request.strategy)
        if request.strategy.reads_prompts:
            num_reused = 0 if state is None else num_reused - 1
        num_reused = num_reused if request.inputs is None else request.inputs.resume_at(num_reused)
        if num_reused < 1:
            self.drop(context)
            return ()
        request.row = row = self._detach(context)  # released with the request if the following fails
        self._target.rollback(row, num_reused)
        self._target.set_inputs(row, request.inputs)
        self._target.backend.refresh()
        return () if state is None else (state,)

    def _detach(self, context: Context) -> CacheRow:
        row = context.row
        assert row is not None, "a cached context has a row"
        self._contexts.remove(context)
        context.row, context.tokens, row.is_waiting = None, (), False
        context.states.clear()
        return row

    def _load_blocks(self, request: RequestState, row: CacheRow) -> tuple[Retained, ...]:
        """Copy the blocks of a request's prompt to its empty row.

        If that fails, the row stays empty and the blocks are disabled. A strategy that reads prompts has the last token
        of the blocks read again.
        """
        strategy, path = request.strategy, list(self._path_of(request.tokens[:-1], request.inputs))
        if strategy.reads_prompts:
            path = list(takewhile(lambda block: strategy in block.states, path))
        while path and not (path[-1].held.is_resumable and _resumes(request, path[-1].end)):
            path.pop()
        if not path:
            return ()
        self._touch(path)
        with Guard("copying keys and values") as guard:
            self._target.append_blocks(row, [block.held for block in path], path[-1].end)
            if strategy.reads_prompts:
                self._target.rollback(row, row.length - 1)
        if guard.error is not None:
            self._disable(guard.error)
            self._target.rollback(row, 0)
            return ()
        return tuple(block.states[strategy] for block in path) if strategy.reads_prompts else ()

    def _copy_blocks(self, row: CacheRow, tokens: Sequence[int], inputs: PromptInputs | None) -> list[Block]:
        """Add the blocks of a row to the cache, as far as there is room; return them, and those that were cached."""
        path = list(self._path_of(tokens[: row.length], inputs))
        self._touch(path)  # so that none of them is dropped for a later block
        for block in path:
            if not block.held.is_final:
                held = block.held.improved(self._target.copy_block(row, block.end - BLOCK, block.end))
                if not self._grow(block, held.num_bytes - block.held.num_bytes, path):
                    return path
                block.held = held
        begin = len(path) * BLOCK
        ends = range(row.length // BLOCK * BLOCK, begin, -BLOCK)
        copies = ((end, self._target.copy_block(row, end - BLOCK, end)) for end in ends)
        last_end, last = next((each for each in copies if each[1].is_resumable), (begin, None))  # a row continues there
        for end in range(begin + BLOCK, last_end + 1, BLOCK):
            held = last if last is not None and end == last_end else self._target.copy_block(row, end - BLOCK, end)
            block = Block(path[-1] if path else None, content_of(tokens, inputs, end - BLOCK, end), end, held)
            if not self._grow(block, held.num_bytes, path):
                break
            self._blocks[block.parent, block.tokens] = block
            path.append(block)
        self._touch(path)
        return path

    def _save_states(self, path: Sequence[Block], request: RequestState) -> None:
        """Add a strategy's states to the blocks of a text, as far as there is room."""
        for block in path:
            if request.strategy not in block.states:
                state = request.retained_state(max(block.end - BLOCK - 1, 0), block.end - 1)
                if state is None or not self._grow(block, state.num_bytes, path):
                    return
                block.states[request.strategy] = state

    def _grow(self, block: Block, num_bytes: int, path: Sequence[Block]) -> bool:
        """Count the bytes that are to be added to a block, if there is room without dropping any block of ``path``."""
        if not self._make_room(num_bytes, path):
            return False
        block.num_bytes += num_bytes
        self.num_bytes += num_bytes
        return True

    def _make_room(self, num_bytes: int, path: Sequence[Block] = ()) -> bool:
        """Drop the least recently used blocks until there is room; False if it needs one of ``path``."""
        while self.num_bytes + num_bytes > self._max_bytes:
            oldest = next(iter(self._blocks.values()), None)
            if oldest is None or oldest in path:
                return False
            del self._blocks[oldest.parent, oldest.tokens]
            self.num_bytes -= oldest.num_bytes
        return True

    def _path_of(self, text: Sequence[int], inputs: PromptInputs | None) -> Iterator[Block]:
        """The cached blocks of a text's prefix."""
        block: Block | None = None
        for end in range(BLOCK, len(text) + 1, BLOCK):
            block = self._blocks.get((block, content_of(text, inputs, end - BLOCK, end)))
            if block is None:
                return
            yield block

    def _touch(self, path: Sequence[Block]) -> None:
        """Mark the blocks of a text as used, its first one last."""
        for block in reversed(path):
            self._blocks.move_to_end((block.parent, block.tokens))

    def _disable(self, error: SpecdecError) -> None:
        warnings.warn(f"the prefix cache is disabled: {error}", stacklevel=2)
        self.resize(0)


def _resumes(request: RequestState, end: int) -> bool:
    """Return True if reading may go on after ``end`` tokens, or from the last one for a strategy that reads prompts."""
    start = end - request.strategy.reads_prompts
    return request.inputs is None or request.inputs.resume_at(start) == start


def _may_reuse(request: RequestState) -> bool:
    """Return False if the whole prompt must be read: for its log-probabilities, or for drafts that decide the text."""
    if request.settings.prompt_logprobs is not None:
        return False
    return request.verifier.is_keyed or not request.strategy.reads_prompts
