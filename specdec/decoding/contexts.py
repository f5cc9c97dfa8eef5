"""Contexts: a text's keys and values are cached from one request to the next that continues the text.

A context retains a row of the cache between requests. The next request reuses the row up to the first token that
differs, and prefills only what follows. In exact numerics this changes no bit of the text. If memory is needed, the
least recently used context loses its row, and its next request prefills everything. So does the next request of every
context after the model has changed: keys and values carry the fingerprint of the model that computed them.

A strategy that reads prompts has its own state retained with the row, and reuses the row as far as this state reaches.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import takewhile
from types import TracebackType
from typing import Protocol, Self
from weakref import ref

from specdec.decoding.plan import Strategy
from specdec.decoding.prefix_cache import Prefixes
from specdec.decoding.retention import Retention
from specdec.errors import plural
from specdec.strategies.retained import Retained
from specdec.target import CacheRow, Target

_MOST_PARKED = 16  # rows: a pass also covers the rows between its own


class Owner(Protocol):
    """The maker of contexts."""

    def drop(self, context: "Context") -> None:
        """Release a context's row."""


class Context:
    """A text that requests continue, one after another; made by ``Generator.context``.

    Attributes:
        owner: the generator that made the context; no other can use it.
        tokens: the cached text; empty while a request uses the row.
        home: the contexts of the row's target.
        computed_by: the fingerprint of the model that computed the keys and values.
        retained: the last request's drafter's state about the text's first ``num_retained`` positions, if any.
        retained_by: a reference to the drafter's strategy.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.tokens: Sequence[int] = ()
        self.row: CacheRow | None = None
        self.home: Contexts | None = None
        self.computed_by: Hashable = None
        self.retained: Retained | None = None
        self.num_retained = 0
        self.retained_by: ref[Strategy] | None = None
        self.is_closed = False

    def close(self) -> None:
        """Release the row; a running request continues."""
        self.is_closed = True
        self.owner.drop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Context({plural(len(self.tokens), 'token')})"


class Contexts:
    """The contexts with rows in a target's cache, least recently used first, and the prefix cache.

    Args:
        fingerprint: returns a value that changes whenever the model does.

    Attributes:
        prefixes: the prefix cache, if there is one.
    """

    def __init__(
        self, target: Target, prefixes: Prefixes | None = None, fingerprint: Callable[[], Hashable] = lambda: None
    ) -> None:
        self._target = target
        self._parked: list[Context] = []
        self._fingerprint = fingerprint
        self._model_now: Hashable = None
        self._is_checked = False  # the model, since requests were last running
        self.prefixes = prefixes

    @property
    def num_retained_bytes(self) -> int:
        """Bytes of the strategies' states in all contexts, in addition to the rows'."""
        return sum(context.retained.num_bytes for context in self._parked if context.retained is not None)

    def begin(self) -> None:
        """Have the model checked before the next request; called while no request is running."""
        self._is_checked = False

    def check_model(self) -> None:
        """Take the model's fingerprint; called before a request that may reuse or leave keys and values."""
        if self._is_checked:
            return
        self._is_checked = True
        before, self._model_now = self._model_now, self._fingerprint()
        if self.prefixes is not None and before != self._model_now:
            self.prefixes.clear()

    def row_for(
        self, context: Context, tokens: Sequence[int], strategy: Strategy
    ) -> tuple[CacheRow | None, tuple[Retained, ...]]:
        """Take a context's row for a text, cut to their common prefix, with the strategy's state about it.

        The text's last token is the root, which no row contains. A strategy that reads prompts gets the row as far as
        its state is known: the state at a position may depend on the next token, so the last common one is read again.

        Returns:
            The row, or None if they have no prefix in common, and the state.
        """
        if context.home is not self or context.row is None:
            return None, ()
        if context.computed_by != self._model_now:
            self.drop(context)
            return None, ()
        pairs = zip(context.tokens, tokens[:-1], strict=False)
        num_reused = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        retained: tuple[Retained, ...] = ()
        if strategy.reads_prompts:
            is_own = context.retained_by is not None and context.retained_by() is strategy
            num_reused = min(num_reused - 1, context.num_retained) if is_own else 0
            retained = (context.retained,) if is_own and context.retained is not None else ()
        if num_reused < 1:
            self.drop(context)
            return None, ()
        try:
            self._target.rollback(context.row, num_reused)
        except BaseException:
            self.drop(context)
            raise
        self._target.backend.refresh()
        return self._take(context), retained

    def take_row(
        self, row: CacheRow, tokens: Sequence[int], context: Context | None, retention: Retention | None
    ) -> None:
        """Take the row of an ended request: save its prefix, and park the row for its context or release it.

        Args:
            retention: of the request's drafter, if its strategy reads prompts.
        """
        if self.prefixes is not None:
            self.prefixes.save(row, tokens, retention)
        if context is None:
            self._target.release(row)
            return
        self.park(context, row, tokens[: row.length])
        if context.row is row and retention is not None:
            context.num_retained = min(retention.num_positions, row.length)
            context.retained = retention.state(0, context.num_retained)
            context.retained_by = None if context.retained is None else ref(retention.strategy)

    def park(self, context: Context, row: CacheRow, tokens: Sequence[int]) -> None:
        """Retain a row for a context; ``tokens`` are the row's."""
        if context.home is not None:
            context.home.drop(context)
        if context.is_closed or not row.length:
            self._target.release(row)
            return
        context.tokens, context.row, context.home = tuple(tokens), row, self
        context.computed_by = self._model_now
        row.is_waiting = True
        self._parked.append(context)
        if len(self._parked) > _MOST_PARKED:
            self.drop(self._parked[0])

    def drop(self, context: Context) -> None:
        """Release a context's row, if the row waits here."""
        if context.home is self and context.row is not None:
            self._target.release(self._take(context))

    def drop_oldest(self, but: Context | None) -> bool:
        """Release the least recently used row of any context ``but`` one; False if there is none."""
        oldest = next((context for context in self._parked if context is not but), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def close(self) -> None:
        """Detach all contexts from their rows; called before the target is closed."""
        for context in [*self._parked]:
            self._take(context)

    def _take(self, context: Context) -> CacheRow:
        row = context.row
        assert row is not None, "a parked context has a row"
        with suppress(ValueError):
            self._parked.remove(context)
        context.tokens, context.row, context.home = (), None, None
        context.retained, context.retained_by, context.num_retained = None, None, 0
        row.is_waiting = False
        return row
