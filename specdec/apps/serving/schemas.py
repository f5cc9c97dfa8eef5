"""The schemas of request bodies: OpenAI's fields, specdec's own, and supported ones of other servers.

Fields without effect are removed before (``ignored_fields``); any other unknown name is refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from specdec.apps.serving.content_parts import content_of

_MOST_STOPS = 32  # special tokens become ids, and the rest has a limit of its own
_MOST_MESSAGES = 2048  # OpenAI's
_MOST_SEED = 2**63
_MOST_TOKENS = 2**31
_MOST_NAMES = 256  # of an object; each invalid one is reported, which takes time and memory
_MOST_BIASES = 4096
_MOST_STOP_TOKENS = 256


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("give text, or a list of parts")
    return value


def _text_of(value: Any) -> str:
    """Return text, or that of a list of parts."""
    content = value if isinstance(value, str) else content_of(_listed(value))
    if not isinstance(content, str):
        raise ValueError('each part must be {"type": "text", "text": …}')
    return content


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
StopTokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=_MOST_STOP_TOKENS, fail_fast=True)]
Biases = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_tokens_to_numbers, json_schema_input_type=dict[str, float]),
]


class Body(BaseModel):
    """A JSON object without type conversions or unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_names_and_no_nulls(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > _MOST_NAMES:
            raise ValueError(f"an object of {len(value)} fields was given, and {_MOST_NAMES} are allowed")
        if isinstance(value, Mapping):  # null asks for the default
            return {name: each for name, each in value.items() if each is not None}
        return value


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="each part has the usage so far, as vLLM's does")
    include_obfuscation: bool | None = None  # without effect


class PromptCacheOptions(Body):
    """OpenAI's options of its prompt cache; prefixes are cached here without them."""

    model_config = ConfigDict(extra="allow")

    prewarm: Literal[False] | None = Field(default=None, description="true asks for no answer, and is refused")


class JsonSchemaFormat(Body):
    """A JSON schema for the content of an answer."""

    name: str | None = Field(default=None, max_length=128)
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema", description="default: any object")
    strict: bool | None = Field(
        default=None, description="false: any object, for a schema that can't be enforced; otherwise it is refused"
    )


class ResponseFormat(Body):
    """The format of the content of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_a_schema_if_it_needs_one(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("json_schema is needed with type json_schema, and with no other type")
        return self


class StructuredOutputs(Body):
    """vLLM's constraint on content: one of these fields."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    grammar: str | None = Field(default=None, description="in llguidance's dialect of Lark, or llama.cpp's GBNF")
    json_object: bool | None = None

    @model_validator(mode="after")
    def _has_one_field(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("give one of json, regex, choice, grammar and json_object")
        return self


class Sampling(Body):
    """The common fields of completions and chat."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=_MOST_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int | None = Field(default=None, ge=1, lt=_MOST_TOKENS)
    stop: Stops | None = None
    skip_special_tokens: bool | None = Field(default=None, description="false keeps special tokens in the text")
    seed: int | None = Field(default=None, ge=-_MOST_SEED, lt=_MOST_SEED)
    logit_bias: Biases | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)

    # specdec's own, which OpenAI's clients send as ``extra_body``
    proposer: str | None = Field(default=None, min_length=1, max_length=1024, description='a strategy, or "off"')
    verifier: str | None = Field(default=None, min_length=1, max_length=256, description="an acceptance rule")
    top_k: int | None = Field(default=None, ge=-1, lt=2**31, description="0 and -1: no limit")
    min_p: float | None = Field(default=None, ge=0, le=1)
    include_steps: bool | None = Field(default=None, description="report each step's draft, in streams")

    # vLLM's
    repetition_penalty: float | None = Field(default=None, gt=0, le=100, description="as in transformers")
    min_tokens: int | None = Field(default=None, ge=0, lt=_MOST_TOKENS, description="minimum number of new tokens")
    ignore_eos: bool | None = Field(default=None, description="continue after the model's own end of text")
    stop_token_ids: StopTokens | None = Field(
        default=None, description="token ids that end the text, besides the model's own"
    )

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = Field(default=None, description="older name of structured_outputs.json")
    guided_regex: str | None = Field(default=None, description="older name of structured_outputs.regex")
    guided_choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None, description="older name of structured_outputs.choice"
    )
    guided_grammar: str | None = Field(default=None, description="older name of structured_outputs.grammar")

    # without effect on the text
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None

    @property
    def has_media(self) -> bool:
        """True if the request has images or recordings."""
        return False

    @property
    def num_prompts(self) -> int:
        """Prompts of the request."""
        return 1

    @property
    def num_texts(self) -> int:
        """The number of requested texts."""
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
    max_tokens: int | None = Field(default=None, ge=0, lt=_MOST_TOKENS, description="0 only with echo")
    echo: bool | None = Field(default=None, description="begin the answer with the prompt, and its log-probabilities")
    logprobs: int | None = Field(default=None, ge=0, le=20)
    best_of: int | None = Field(default=None, ge=1, lt=_MOST_TOKENS)

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)

    @field_validator("prompt")
    @classmethod
    def _has_a_known_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            kinds = {*map(type, value)}
            if kinds == {int}:
                return [value]
            if kinds == {str} or (kinds == {list} and all({*map(type, item)} <= {int} for item in value)):
                return value
        raise ValueError("give text, a list of texts, token ids, or a list of lists of token ids, none of them empty")


class Message(Body):
    """One message of a conversation; further fields are passed to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = Field(
        default=None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]}
    )
    refusal: str | None = Field(default=None, description="the content of an assistant's message without one")

    @field_validator("content")
    @classmethod
    def _has_known_parts(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else content_of(_listed(value))


class Prediction(Body):
    """OpenAI's predicted output: a text that the answer is expected to resemble. It never changes the answer."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_text_of, json_schema_input_type=str | list[dict[str, str]])]


class ChatBody(Sampling):
    """The body of /v1/chat/completions."""

    has_strict_tools: ClassVar[bool] = False  # OpenAI's default for functions without "strict"

    messages: list[Message] = Field(min_length=1, max_length=_MOST_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=_MOST_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="functions, which the chat template formats for the model"
    )
    tool_choice: Any = Field(
        default=None,
        description="none, auto, required, or a function",
        json_schema_extra={"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
    )
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None

    # for the chat template; templates that don't read them write the same
    reasoning_effort: str | None = Field(default=None, min_length=1, max_length=32)
    verbosity: Literal["low", "medium", "high"] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    prediction: Prediction | None = Field(default=None, description="a text that the answer is expected to resemble")

    @property
    def has_media(self) -> bool:
        return any(isinstance(message.content, list) for message in self.messages)
