"""A response's input as the messages of a chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.apps.serving.content_parts import Content, content_of, part_of
from specdec.apps.serving.errors import invalid
from specdec.apps.serving.tool_arguments import parsed_arguments

_ROLES = "user", "assistant", "system", "developer"
Message = dict[str, Any]


def messages_of(instructions: str | None, given: str | Sequence[Any]) -> list[Message]:
    """Return the messages of a conversation; ``instructions`` are its first one.

    The parts of one turn of the assistant, its reasoning, text and calls, become one message.

    Raises:
        ApiError: with the item at fault.
    """
    if not isinstance(given, str | list) or not given:
        raise invalid("input", "give text or a list of items, neither of them empty")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    conversation = _Conversation()
    if instructions is not None:
        conversation.messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """The messages so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: Message | None = None  # the assistant's, while its items follow one another
        self._names: dict[str, str] = {}  # of functions, by the call's id

    def add(self, item: Any, place: str) -> None:
        """Add an item."""
        if not isinstance(item, Mapping):
            raise invalid(place, "give an object")
        match item.get("type") or "message":
            case "message":
                self._add_message(item, place)
            case "function_call":
                self._add_call(item, place)
            case "function_call_output":
                self._add_output(item, place)
            case "reasoning":
                self._add_reasoning(item, place)
            case "item_reference":
                raise invalid(f"{place}.type", "this server stores no items: send the item itself")
            case kind:
                known = "message, function_call, function_call_output or reasoning"
                raise invalid(f"{place}.type", f"{str(kind)[:64]!r} isn't supported: give {known}")

    def _add_message(self, item: Mapping[str, Any], place: str) -> None:
        role, content = item.get("role"), _content_of(item.get("content"), f"{place}.content")
        if role not in _ROLES:
            raise invalid(f"{place}.role", f"give one of {', '.join(_ROLES)}")
        if role != "assistant":
            self._turn = None
            self.messages.append({"role": role, "content": content})
            return
        turn = self._assistant()
        if "tool_calls" in turn or turn["content"]:
            turn = self._assistant(is_new=True)
        turn["content"] = content

    def _add_reasoning(self, item: Mapping[str, Any], place: str) -> None:
        name = "content" if item.get("content") else "summary"
        if reasoning := _text_of(item.get(name) or "", f"{place}.{name}"):
            turn = self._assistant()
            turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning

    def _add_call(self, item: Mapping[str, Any], place: str) -> None:
        call_id, name, arguments = (_string(item, key, place) for key in ("call_id", "name", "arguments"))
        self._names[call_id] = name
        function = {"name": name, "arguments": parsed_arguments(arguments, f"{place}.arguments")}
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def _add_output(self, item: Mapping[str, Any], place: str) -> None:
        call_id, content = _string(item, "call_id", place), _text_of(item.get("output"), f"{place}.output")
        self._turn = None
        name = {"name": self._names[call_id]} if call_id in self._names else {}
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content, **name})

    def _assistant(self, is_new: bool = False) -> Message:
        """Return the assistant's message that is being put together."""
        if self._turn is None or is_new:
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        return self._turn


def _content_of(content: Any, place: str) -> Content:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(place, "give text, or a list of parts")
    for index, part in enumerate(content):
        try:
            part_of(part)
        except ValueError as error:
            raise invalid(f"{place}[{index}]", str(error)) from None
    return content_of(content)


def _text_of(content: Any, place: str) -> str:
    found = _content_of(content, place)
    if not isinstance(found, str):
        raise invalid(place, "give text: images and recordings are sent in messages")
    return found


def _string(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise invalid(f"{place}.{key}", "give a string")
    return value
