"""A request of /v1/responses as a request of /v1/chat/completions, which the server answers."""

import re
from typing import Any

from pydantic import PrivateAttr, ValidationError

from specdec.apps.serving.body_parsing import parse_object
from specdec.apps.serving.errors import ApiError, invalid, of_validation
from specdec.apps.serving.ignored_fields import CHAT_FIELDS, without_ignored_fields
from specdec.apps.serving.responses_api.body import ResponsesBody, TextFormat, without_unsupported
from specdec.apps.serving.responses_api.conversation import messages_of
from specdec.apps.serving.schemas import ChatBody

_SAME = "model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_logprobs"
# The names of a chat's fields in errors, and their names here, in this order.
_NAMES = (
    (r"\bresponse_format(\.json_schema)?\b", "text.format"),
    (r"^messages\b|\bmessages(?=\[)|(?<=')messages(?=')", "input"),
    (r"\bmax(_completion)?_tokens\b", "max_output_tokens"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (r"(?<!\.)\bverbosity\b", "text.verbosity"),
    (r"\btool_choice\.allowed_tools\b", "tool_choice"),
    (r"\b(tool_choice(?:\.tools\[\d+\])?|tools\[\d+\])\.function\b", r"\1"),
)


class ResponsesChat(ChatBody):
    """A request of /v1/responses as a chat's."""

    has_strict_tools = True

    _origin: ResponsesBody | None = PrivateAttr(default=None)

    @property
    def origin(self) -> ResponsesBody:
        """The request as it was."""
        assert self._origin is not None, "it is set by parse_responses"
        return self._origin


def parse_responses(content: bytes) -> ResponsesChat:
    """Parse the body of a request.

    Raises:
        ApiError: if it can't be parsed, or has an invalid or unsupported field.
    """
    fields = without_unsupported(parse_object(content))
    try:
        body = ResponsesBody.model_validate(fields)
    except ValidationError as error:
        raise of_validation(error) from None
    try:
        chat = _chat(body)
    except ApiError as error:
        raise renamed(error) from None
    chat._origin = body
    return chat


def renamed(error: ApiError) -> ApiError:
    """Return an error about a chat's body with the names of a response's fields."""
    message, param = str(error), error.param
    if error.code == "unknown_parameter":  # the request has that name
        return error
    for theirs, own in _NAMES:
        message = re.sub(theirs, own, message)
        param = None if param is None else re.sub(theirs, own, param)
    return ApiError(error.status, message, param, error.code, error.headers)


def _chat(body: ResponsesBody) -> ResponsesChat:
    """Return a request as a chat's."""
    fields = (body.model_extra or {}) | {name: getattr(body, name) for name in _SAME}
    fields |= {
        "messages": messages_of(body.instructions, body.input),
        "max_completion_tokens": body.max_output_tokens,
        "tools": None if body.tools is None else [_tool(tool, index) for index, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(body.tool_choice),
        "logprobs": True if body.wants_logprobs else None,
        "response_format": _response_format(None if body.text is None else body.text.format),
        "verbosity": None if body.text is None else body.text.verbosity,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }
    if body.top_logprobs and not body.wants_logprobs:
        message = 'top_logprobs needs include: ["message.output_text.logprobs"].'
        raise ApiError(400, message, "top_logprobs", "invalid_value")
    try:
        return ResponsesChat.model_validate(without_ignored_fields(fields, CHAT_FIELDS, ChatBody.model_fields))
    except ValidationError as error:
        raise of_validation(error) from None


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        reason = f"{str(kind)[:64]!r} isn't supported: give functions"
        raise invalid(f"tools[{index}].type", reason, "unsupported_value")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return _named(choice)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = [_named(tool) if isinstance(tool, dict) else tool for tool in choice["tools"]]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return choice


def _named(choice: dict[str, Any]) -> dict[str, Any]:
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}


def _response_format(text: TextFormat | None) -> dict[str, Any] | None:
    if text is None:
        return None
    if text.type != "json_schema":
        return {"type": text.type}
    fields = text.model_dump(by_alias=True, exclude_none=True)
    return {"type": fields.pop("type"), "json_schema": fields}
