"""The schema of the body of /v1/responses, and what of it this server can't do."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.schemas import Body, PromptCacheOptions

_SEND_ALL = "this server stores nothing: send the whole conversation as input"
# Fields that need memory on the server, with the remedy.
_STORED: Mapping[str, str] = {
    "previous_response_id": _SEND_ALL,
    "conversation": _SEND_ALL,
    "context_management": _SEND_ALL,
    "prompt": "this server stores no prompts: write it as instructions and input",
    "background": "this server stores nothing: leave it out, and wait for the answer or stream it",
    "store": "this server stores nothing: leave it out or give false, and send the whole conversation as input",
}
# Fields of chat completions, with what replaces them.
_OF_CHAT: Mapping[str, str] = {
    "messages": "give input",
    "max_tokens": "give max_output_tokens",
    "max_completion_tokens": "give max_output_tokens",
    "response_format": "give text.format",
    "logprobs": 'give include: ["message.output_text.logprobs"]',
    "reasoning_effort": "give reasoning.effort",
    "verbosity": "give text.verbosity",
    "n": "a response has one text",
    "include_steps": "a stream of /v1/chat/completions reports steps",
    "prediction": "leave it out",
    "modalities": "leave it out",
}
LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip


class TextFormat(Body):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_a_schema_if_it_needs_one(self) -> Self:
        if (self.schema_ is not None) != (self.type == "json_schema"):
            raise ValueError("schema is needed with type json_schema, and with no other type")
        return self


class TextOptions(Body):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def as_reported(self) -> dict[str, Any]:
        """Return the options as a response repeats them."""
        return {"format": {"type": "text"}} | self.model_dump(by_alias=True, exclude_none=True)


class ReasoningOptions(Body):
    """Options of the reasoning, which is reported as the model wrote it, without a summary."""

    effort: str | None = Field(default=None, min_length=1, max_length=32)
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "all_turns"] | None = None  # without effect: the chat template decides
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Body):
    """Options of a stream."""

    include_obfuscation: bool | None = None  # without effect


class ResponsesBody(Body):
    """The body of /v1/responses; further fields are those of /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: Any = Field(
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(default=None, description="functions")
    tool_choice: Any = Field(
        default=None,
        description="none, auto, required, or a function",
        json_schema_extra={"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
    )
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Included], Field(max_length=16, fail_fast=True)] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    truncation: Literal["disabled"] | None = None

    # without effect on the text
    max_tool_calls: int | None = Field(
        default=None, description="limits built-in tools, which this server doesn't have"
    )
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        """True if log-probabilities of the text are requested."""
        return LOGPROBS in (self.include or ())


def without_unsupported(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body's fields without those that have no effect at their values.

    Raises:
        ApiError: for a field that needs memory on the server, or that has another name here.
    """
    left = {}
    for name, value in fields.items():
        if value is None or (name in ("store", "background") and value is False) or (name == "n" and value == 1):
            continue
        if name in _STORED:
            raise ApiError(400, f"{name} isn't supported: {_STORED[name]}.", name, "unsupported_parameter")
        if name in _OF_CHAT:
            message = f"{name} isn't a field of /v1/responses: {_OF_CHAT[name]}."
            raise ApiError(400, message, name, "unknown_parameter")
        left[name] = value
    return left
