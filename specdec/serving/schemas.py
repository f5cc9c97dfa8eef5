"""The bodies of requests: OpenAI's fields, and specdec's own beside them; every other name is refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

_MOST_STOPS = 16
_MOST_SEED = 2**63
_MOST_TOKENS = 2**31
_MOST_NAMES = 256  # of an object's: each one at fault is told of, which takes time and memory
_MOST_BIASES = 4096


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _tokens_to_numbers(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("give an object of token ids and numbers")
    if len(value) > _MOST_BIASES:
        raise ValueError(f"give {_MOST_BIASES} tokens at most")
    for token in value:
        if not str(token).isascii() or not str(token).isdigit() or len(str(token)) > 9:
            raise ValueError('its names must be token ids, such as {"50256": -100}')
    return {int(token): number for token, number in value.items()}


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=512)]],
    Field(max_length=_MOST_STOPS, fail_fast=True),
    BeforeValidator(_one_or_several, json_schema_input_type=str | list[str]),
]
Biases = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_tokens_to_numbers, json_schema_input_type=dict[str, float]),
]


class Body(BaseModel):
    """A JSON object: types aren't converted, names are known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_names(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > _MOST_NAMES:
            raise ValueError(f"an object of {len(value)} fields was given, and {_MOST_NAMES} are allowed")
        return value


class StreamOptions(Body):
    """The parts that a stream has besides text."""

    include_usage: bool = False
    include_obfuscation: bool | None = None  # without effect


class Sampling(Body):
    """The fields that completions and chat share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, lt=_MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, lt=_MOST_TOKENS)
    stop: Stops | None = None
    skip_special_tokens: bool | None = Field(None, description="false keeps special tokens in the text")
    seed: int | None = Field(None, ge=-_MOST_SEED, lt=_MOST_SEED)
    logit_bias: Biases | None = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)

    # specdec's own, which OpenAI's clients send as ``extra_body``
    proposer: str | None = Field(None, min_length=1, max_length=1024, description='a strategy, or "off"')
    verifier: str | None = Field(None, min_length=1, max_length=256, description="an acceptance rule")
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="0 and -1 keep all tokens")
    min_p: float | None = Field(None, ge=0, le=1)
    include_steps: bool | None = Field(None, description="tell of each step's draft, in streams")

    # without effect on the text
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def num_prompts(self) -> int:
        """Prompts of the request."""
        return 1

    @property
    def num_texts(self) -> int:
        """Texts that are asked for."""
        return self.num_prompts * (self.n or 1)


class CompletionBody(Sampling):
    """The body of /v1/completions."""

    prompt: Any = Field(
        json_schema_extra={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] | None = None
    best_of: int | None = Field(None, ge=1, lt=_MOST_TOKENS)
    suffix: None = None

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)

    @field_validator("prompt")
    @classmethod
    def _has_a_known_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            if all(_is_id(token) for token in value):
                return [value]
            is_text = all(isinstance(item, str) for item in value)
            if is_text or all(isinstance(item, list) and all(_is_id(token) for token in item) for item in value):
                return value
        raise ValueError("give text, a list of texts, token ids, or a list of lists of token ids, none of them empty")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Message(Body):
    """One message of a conversation; what it has besides goes to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = Field(None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]})

    @field_validator("content")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("give text, or a list of parts")
        for part in value:
            if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                raise ValueError('each part must be {"type": "text", "text": …}: this model reads text alone')
        return "".join(part["text"] for part in value)


class ResponseFormat(Body):
    """The form of an answer: text, and no other."""

    type: Literal["text"]


class ChatBody(Sampling):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, lt=_MOST_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="for the chat template, which writes them out"
    )
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
