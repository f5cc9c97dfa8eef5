"""The items of a response's output, and the events by which each of them is streamed.

An event has no ``sequence_number`` yet, which counts over all items.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Event = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(ABC):
    """One item of the output, from its first piece to its last.

    Args:
        output_index: its place in the output.
    """

    def __init__(self, prefix: str, output_index: int) -> None:
        self.id = f"{prefix}_{uuid.uuid4().hex}"
        self.status: Status = "in_progress"
        self._output_index = output_index

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the item as it is now."""

    @abstractmethod
    def begin(self) -> list[Event]:
        """Return the events before the first piece."""

    @abstractmethod
    def _closing(self) -> list[Event]:
        """Return the events that repeat the whole text, before the one that closes the item."""

    def end(self, is_complete: bool) -> list[Event]:
        """Close the item; return the last events."""
        self.status = "completed" if is_complete else "incomplete"
        return [*self._closing(), self._event("output_item.done", item=self.as_dict())]

    def _added(self) -> Event:
        return self._event("output_item.added", item=self.as_dict())

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "output_index": self._output_index, **fields}

    def _own(self, kind: str, **fields: Any) -> Event:
        """Return an event about a part of the item."""
        return self._event(kind, item_id=self.id, **fields)


class TextItem(OutputItem):
    """An item with one part of text."""

    def __init__(self, prefix: str, output_index: int) -> None:
        super().__init__(prefix, output_index)
        self._text = ""
        self._has_part = False

    @property
    def _content(self) -> list[dict[str, Any]]:
        return [self._part()] if self._has_part else []

    def begin(self) -> list[Event]:
        added = self._added()
        self._has_part = True
        return [added, self._own("content_part.added", content_index=0, part=self._part())]

    def _closing(self) -> list[Event]:
        return [self._done(), self._own("content_part.done", content_index=0, part=self._part())]

    @abstractmethod
    def _part(self) -> dict[str, Any]:
        """Return the part as it is now."""

    @abstractmethod
    def _done(self) -> Event:
        """Return the event that repeats the whole text."""


class MessageItem(TextItem):
    """A message of the assistant's."""

    def __init__(self, output_index: int) -> None:
        super().__init__("msg", output_index)
        self._logprobs: list[Mapping[str, Any]] = []

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": self._content}

    def add(self, text: str, logprobs: Sequence[Mapping[str, Any]]) -> list[Event]:
        """Add text; ``logprobs`` are of its tokens, if requested."""
        self._text += text
        self._logprobs += logprobs
        return [self._own("output_text.delta", content_index=0, delta=text, logprobs=[*logprobs])]

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": [*self._logprobs]}

    def _done(self) -> Event:
        return self._own("output_text.done", content_index=0, text=self._text, logprobs=[*self._logprobs])


class ReasoningItem(TextItem):
    """The reasoning before an answer, as the model wrote it."""

    def __init__(self, output_index: int) -> None:
        super().__init__("rs", output_index)

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "status": self.status, "summary": [], "content": self._content}

    def add(self, text: str) -> list[Event]:
        """Add text."""
        self._text += text
        return [self._own("reasoning_text.delta", content_index=0, delta=text)]

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self._text}

    def _done(self) -> Event:
        return self._own("reasoning_text.done", content_index=0, text=self._text)


class CallItem(OutputItem):
    """A call of a function.

    Args:
        call_id: by which its result will refer to it.
    """

    def __init__(self, output_index: int, call_id: str, name: str) -> None:
        super().__init__("fc", output_index)
        self._call_id, self._name, self._arguments = call_id, name, ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self._arguments,
        }

    def begin(self) -> list[Event]:
        return [self._added()]

    def add(self, arguments: str) -> list[Event]:
        """Add a part of the arguments."""
        self._arguments += arguments
        return [self._own("function_call_arguments.delta", delta=arguments)]

    def _closing(self) -> list[Event]:
        return [self._own("function_call_arguments.done", name=self._name, arguments=self._arguments)]
