"""Contexts: the keys and values of a text, kept from one request to the next that goes on from it.

A context holds a row of the cache between requests. The next request takes the row over up to the first token that is
another one, and reads only what follows. In exact numerics that changes no bit, so the text is what it would be from
scratch. Where room is needed, the context that was used least recently loses its row, and its next request reads all.
So does every context once the model has changed: keys and values are kept with the fingerprint of the model that
computed them.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import takewhile
from types import TracebackType
from typing import Protocol, Self

from specdec.decoding.prefix_cache import Prefixes
from specdec.errors import plural
from specdec.target import Row, Target

_MOST_PARKED = 16  # rows; a pass covers those that lie between its own


class Owner(Protocol):
    """Whoever hands out contexts, and can let go of one's row while nothing decodes."""

    def drop(self, context: "Context") -> None:
        """Close a context's row."""


class Context:
    """A text that requests go on from, one after another; made by ``Generator.context``.

    Attributes:
        owner: the generator that made it, and alone can use it.
        tokens: the text whose keys and values are held; empty while a request has the row.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.tokens: Sequence[int] = ()
        self.row: Row | None = None
        self.home: Contexts | None = None  # whose target has the row
        self.computed_by: Hashable = None  # the model's fingerprint
        self.is_closed = False

    def close(self) -> None:
        """Let go of what is held; a request that is under way still ends as it would."""
        self.is_closed = True
        self.owner.drop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Context({plural(len(self.tokens), 'token')})"


class Contexts:
    """The contexts whose rows wait in a target's cache, least recently used first, and the prefixes of any request.

    Args:
        fingerprint: returns what the model computes just now, as a value to compare.

    Attributes:
        prefixes: what other requests have read, where that is kept.
    """

    def __init__(
        self, target: Target, prefixes: Prefixes | None = None, fingerprint: Callable[[], Hashable] = lambda: None
    ) -> None:
        self._target = target
        self._parked: list[Context] = []
        self._fingerprint = fingerprint
        self._model_now: Hashable = None
        self._is_checked = False  # the model, since nothing was decoding
        self.prefixes = prefixes

    def begin(self) -> None:
        """Note that nothing is decoding, so that the model may have changed before the next request."""
        self._is_checked = False

    def check_model(self) -> None:
        """Find out what the model computes, once, before the first request that may use or leave something."""
        if self._is_checked:
            return
        self._is_checked = True
        before, self._model_now = self._model_now, self._fingerprint()
        if self.prefixes is not None and before != self._model_now:
            self.prefixes.clear()

    @property
    def num_parked(self) -> int:
        """Rows that wait."""
        return len(self._parked)

    def row_for(self, context: Context, tokens: Sequence[int]) -> Row | None:
        """Take a context's row for a text, cut back to what both begin with; None where that is nothing.

        The text's last token is the request's root, which no row has yet.
        """
        if context.home is not self or context.row is None:
            return None
        if context.computed_by != self._model_now:
            self.drop(context)
            return None
        pairs = zip(context.tokens, tokens[:-1], strict=False)
        num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not num_common:
            self.drop(context)
            return None
        try:
            self._target.rollback(context.row, num_common)
        except BaseException:
            self.drop(context)
            raise
        self._target.backend.refresh()
        return self._take(context)

    def let_go(self, row: Row, tokens: Sequence[int], context: Context | None) -> None:
        """Take the row of a request that has ended: for its context, for whoever begins alike, or for nobody."""
        if self.prefixes is not None:
            self.prefixes.save(row, tokens)
        if context is None:
            self._target.release(row)
        else:
            self.park(context, row, tokens[: row.length])

    def park(self, context: Context, row: Row, tokens: Sequence[int]) -> None:
        """Keep a request's row for its context; ``tokens`` are those that the row holds."""
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
        """Release a context's row, if it waits here."""
        if context.home is self and context.row is not None:
            self._target.release(self._take(context))

    def drop_oldest(self, but: Context | None) -> bool:
        """Release the row of the context that was used least recently; False if none but one is left."""
        oldest = next((context for context in self._parked if context is not but), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def close(self) -> None:
        """Forget all rows: the target is about to be closed."""
        for context in [*self._parked]:
            self._take(context)

    def _take(self, context: Context) -> Row:
        row = context.row
        assert row is not None, "a context that waits has a row"
        with suppress(ValueError):
            self._parked.remove(context)
        context.tokens, context.row, context.home = (), None, None
        row.is_waiting = False
        return row
