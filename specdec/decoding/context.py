"""Contexts: a text that requests continue, one after another."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakKeyDictionary

from specdec.decoding.strategy import Strategy
from specdec.errors import plural
from specdec.strategies.request import Retained
from specdec.target import CacheRow


class Owner(Protocol):
    """The maker of contexts."""

    def drop(self, context: "Context") -> None:
        """Release a context's row."""


class Context:
    """A text that requests continue, one after another; made by ``Generator.context``.

    The prefix cache retains the row of each request for the next one.

    Attributes:
        owner: the generator that made the context; no other can use it.
        row: None while a request uses it, and once it was dropped.
        tokens: the row's.
        states: a strategy's state about all of them.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.row: CacheRow | None = None
        self.tokens: Sequence[int] = ()
        self.states = WeakKeyDictionary[Strategy, Retained]()
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
