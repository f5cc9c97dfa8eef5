"""A response's output: the pieces of an answer as items, one after another."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from specdec.apps.serving.parsed_answer import AnswerPiece, CallPiece
from specdec.apps.serving.responses_api.items import CallItem, Event, MessageItem, OutputItem, ReasoningItem

Item = TypeVar("Item", bound=OutputItem)


class OutputItems:
    """The items of one answer; a piece of another kind than the last one's closes the item and begins the next."""

    def __init__(self) -> None:
        self._items: list[OutputItem] = []
        self._logprobs: list[Mapping[str, Any]] = []  # of tokens whose text is still held back

    def as_list(self) -> list[dict[str, Any]]:
        """Return the items as they are now."""
        return [item.as_dict() for item in self._items]

    def add(self, pieces: Iterable[AnswerPiece], logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Event]:
        """Add pieces; return their events.

        Args:
            logprobs: of the tokens that completed the pieces, if requested. Those of a message's tokens are reported.
        """
        events: list[Event] = []
        self._logprobs += logprobs
        for piece in pieces:
            if piece.call is not None:
                events += self._add_call(piece.call)
            elif piece.reasoning:
                item = self._last(ReasoningItem) or self._begin(ReasoningItem(len(self._items)), events)
                events += item.add(piece.reasoning)
            elif piece.content:
                message = self._last(MessageItem) or self._begin(MessageItem(len(self._items)), events)
                events += message.add(piece.content, self._logprobs)
            self._logprobs = []
        return events

    def end(self, is_complete: bool) -> list[Event]:
        """Close the last item; an answer without pieces is an empty message.

        Args:
            is_complete: False if the answer was cut.
        """
        events: list[Event] = []
        if not self._items:
            self._begin(MessageItem(0), events)
        message = self._last(MessageItem)
        if message is not None and self._logprobs:  # of tokens without text, such as the end of text
            events += message.add("", self._logprobs)
        return events + self._items[-1].end(is_complete)

    def _add_call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        call = self._last(CallItem)
        if piece.id is not None and piece.name is not None:
            call = self._begin(CallItem(len(self._items), piece.id, piece.name), events)
        assert call is not None, "a call begins with its name"
        return events + (call.add(piece.arguments) if piece.arguments else [])

    def _last(self, kind: type[Item]) -> Item | None:
        """Return the open item if it is of this kind."""
        last = self._items[-1] if self._items else None
        return last if isinstance(last, kind) else None

    def _begin(self, item: Item, events: list[Event]) -> Item:
        """Close the last item and begin another; appends their events."""
        if self._items:
            events += self._items[-1].end(is_complete=True)
        self._items.append(item)
        events += item.begin()
        return item
