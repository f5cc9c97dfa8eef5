"""The settings of one request, in transformers' names; every option is off by default."""

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from specdec.constraints.base import Constraint
from specdec.errors import RequestError, describe, plural

# (input_ids (batch, tokens), scores (batch, vocab)) -> scores, as transformers' LogitsProcessor
Processor = Callable[[Any, Any], Any]
# (input_ids (1, tokens), None) -> a bool, or a tensor (1,) of it, as transformers' StoppingCriteria
Criterion = Callable[[Any, Any], Any]

# Names of a GenerationConfig that don't affect the text, accepted at any value but for a quantized cache.
_WITHOUT_EFFECT = {
    "transformers_version", "use_cache", "cache_implementation", "cache_config", "max_cache_len", "pad_token_id",
    "bos_token_id", "return_dict_in_generate", "disable_compile", "compile_config", "_from_model_config", "low_memory",
    "prefill_chunk_size", "early_stopping", "length_penalty",
}  # fmt: skip
# Names that are accepted at the value that disables them.
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1), "encoder_no_repeat_ngram_size": 0,
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), 1.0), "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "diversity_penalty": 0.0, "penalty_alpha": 0.0, "renormalize_logits": False,
    "remove_invalid_values": False, "token_healing": False, "use_mtp": False, "is_assistant": False,
    **dict.fromkeys(("output_scores", "output_attentions", "output_hidden_states", "output_logits"), False),
}  # fmt: skip
SAME_NAME = (
    "max_new_tokens", "max_length", "max_time", "min_new_tokens", "min_length", "temperature", "top_k", "top_p",
    "min_p", "repetition_penalty", "no_repeat_ngram_size", "eos_token_id", "suppress_tokens", "bad_words_ids",
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
)  # fmt: skip
_OF_GENERATE = (
    "proposer", "generation_config", "on_step", "each", "context", "reference", "do_sample", "stop_strings",
    "num_return_sequences", "streamer", "tools", "documents", "chat_template", "chat_template_kwargs",
    "enable_thinking", "input_ids", "attention_mask",
)  # fmt: skip
OF_GENERATOR = (
    "verifier", "numerics", "weights", "mask", "backend", "device", "dtype", "max_batch_size", "max_cache_bytes",
    "background_work",
)  # fmt: skip
# Names of other functions and libraries, each with its name here or a remedy.
_ELSEWHERE = {
    **dict.fromkeys(_OF_GENERATE, "it is an argument of generate itself"),
    **{name: f"it belongs to the generator: Generator(model, {name}=…)" for name in OF_GENERATOR},
    "torch_dtype": "it belongs to the generator: Generator(model, dtype=…)",
    "device_map": "it belongs to the generator: Generator(model, device=…)",
    "strategy": "proposer",
    "max_tokens": "max_new_tokens",
    "stop_sequences": "stop",
    "random_seed": "seed",
    "n": "num_return_sequences",
    "stream": "use generator.stream(prompt)",
    "output_scores": "records of steps have them: on_step, with keeps_scores=True",
    "output_logits": "records of steps have them: on_step, with keeps_logits=True",
    "inputs_embeds": "a prompt is text, messages or ids",
    **dict.fromkeys(("cache", "past_key_values"), "give the whole text"),
    "assistant_model": "use proposer=DraftModelProposer(model=…)",
    "prompt_lookup_num_tokens": "use proposer='prompt_lookup'",
    "num_beams": "there is no beam search here: use model.generate",
    **dict.fromkeys(
        ("response_format", "json_schema", "guided_json", "structured_outputs", "grammar"),
        "use constraint=JsonSchema(…), or another of specdec.constraints",
    ),
}
_NONE = {"eos_token_id": ()}  # what a keyword that is None means, where leaving it out means something else
_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p")
LEAST_TEMPERATURE = 1e-6  # below it, scores divided by the temperature overflow float32
# Names that take one value or several.
_SEVERAL = {
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), "a token id, a list of them, or None for none"),
    "stop": "a string, or a list of them",
    "logits_processor": "a function (input_ids, scores) -> scores, or a list of them",
    "stopping_criteria": "a function (input_ids, scores) -> bool, or a list of them",
}
_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "no_repeat_ngram_size": 0, "min_new_tokens": 0, "min_length": 0}
_NOT_CONSTRAINED = "min_new_tokens", "min_length", "forced_eos_token_id", "forced_bos_token_id"


class Settings(BaseModel):
    """The checked settings of one request.

    Attributes:
        max_length, min_length: count the prompt as well; ``max_new_tokens`` takes precedence over ``max_length``.
        temperature: 0 takes the most likely token.
        frequency_penalty, presence_penalty, logit_bias: OpenAI's; ``logit_bias`` has pairs, or a mapping by token id.
        forced_bos_token_id: the token after a prompt of one token, as a translation's language.
        forced_eos_token_id: the last token of a text that doesn't end before.
        eos_token_id: in place of those of the model's generation config; None or an empty list for none.
        stop: strings; the text is cut where one begins.
        skip_special_tokens: False leaves special tokens in the text: the end of text, and the markers that some models
            write between the parts of an answer.
        hidden_token_ids: tokens that the text omits, whatever ``skip_special_tokens`` is.
        seed: None draws a new one, which the result reports.
        logits_processor: called along each request's accepted path, in order. Each request of a list has its own
            copies of processors that may have state; they don't see what is set in the original later. An attribute
            ``is_path_pure = True`` shares the object instead. Functions can't be copied, so they need it.
        stopping_criteria: called after each token of the text, also if a step emits several; copied in the same way,
            so a criterion that ends a list's texts by an attribute set later needs ``is_path_pure``.
        max_time: seconds since the request was made; the token that exceeds it is the last.
        constraint: the texts that are allowed, such as ``JsonSchema(Person)`` from ``specdec.constraints``.
        keeps_scores: records of steps have the scores that decided each token.
        keeps_logits: records of steps have the model's raw logits.
        prompt_logprobs: records of steps have the log-probability of each token of the prompt, and this many top tokens
            at its position. The whole prompt is computed then, without cached prefixes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    max_new_tokens: int = Field(default=128, ge=1)
    max_length: int | None = Field(default=None, ge=2)
    min_new_tokens: int | None = Field(default=None, ge=1)
    min_length: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    min_p: float | None = Field(default=None, gt=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, allow_inf_nan=False)
    logit_bias: tuple[tuple[int, FiniteFloat], ...] = ()
    no_repeat_ngram_size: int | None = Field(default=None, ge=1)
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    eos_token_id: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    hidden_token_ids: tuple[int, ...] = ()
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    logits_processor: tuple[Processor, ...] = ()
    stopping_criteria: tuple[Criterion, ...] = ()
    max_time: float | None = Field(default=None, gt=0.0)
    constraint: SerializeAsAny[Constraint] | None = None
    keeps_scores: bool = False
    keeps_logits: bool = False
    prompt_logprobs: int | None = Field(default=None, ge=0)

    @field_validator(*_SEVERAL, mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        if hasattr(value, "tolist"):  # a tensor or an array
            value = value.tolist()
        is_one = isinstance(value, Integral | str) or (callable(value) and not isinstance(value, list))
        return (value,) if is_one else value

    @field_validator(*_SEVERAL, mode="wrap")  # after the one above, so that it sees the value as it was given
    @classmethod
    def _refuse_as_given(cls, value: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(f"give {_SEVERAL[info.field_name or '']}") from None

    @field_validator(*_OFF, mode="before")
    @classmethod
    def _off_is_none(cls, value: object, info: Any) -> object:
        """Replace transformers' neutral values (top_k=0, top_p=1.0, …) by None."""
        return None if isinstance(value, int | float) and value == _OFF[info.field_name] else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _as_pairs(cls, value: object) -> object:
        return tuple(value.items()) if isinstance(value, Mapping) else value

    @field_validator("constraint", mode="before")
    @classmethod
    def _is_constraint(cls, value: object) -> object:
        if value is not None and not isinstance(value, Constraint):
            raise ValueError("give a constraint of specdec.constraints, such as JsonSchema(Person) or Regex('[0-9]+')")
        return value

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        if self.temperature == 0.0:
            for name in _SAMPLING_ONLY[1:]:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} needs sampling, but temperature is 0: set temperature, or leave {name} out"
                    )
        elif self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature={self.temperature} is below {LEAST_TEMPERATURE}, where scores overflow: "
                "0 takes the most likely token"
            )
        if "" in self.stop:
            raise ValueError("stop contains an empty string, which would stop every text: remove it")
        if () in self.bad_words_ids:
            raise ValueError("bad_words_ids contains an empty list, which names no word: remove it")
        if (self.min_new_tokens or 0) > self.max_new_tokens:
            raise ValueError(f"min_new_tokens={self.min_new_tokens} is above max_new_tokens={self.max_new_tokens}")
        for name in _NOT_CONSTRAINED if self.constraint is not None else ():
            if getattr(self, name) not in (None, ()):
                raise ValueError(f"{name} and constraint both decide where the text may begin or end: set one to None")
        return self

    def after_prompt(self, num_tokens: int) -> Self:
        """Return the settings for a prompt of ``num_tokens``, with ``max_length`` as ``max_new_tokens``.

        Raises:
            RequestError: if the prompt is not shorter than ``max_length``.
        """
        if self.max_length is None or "max_new_tokens" in self.model_fields_set:
            return self
        if num_tokens >= self.max_length:
            raise RequestError(
                f"the prompt has {plural(num_tokens, 'token')}, and max_length={self.max_length} counts them: "
                "set max_new_tokens"
            )
        return self.model_copy(update={"max_new_tokens": self.max_length - num_tokens})

    @classmethod
    def make(
        cls, given: Mapping[str, Any], generation_config: Any | None = None, defaults: Mapping[str, Any] | None = None
    ) -> Self:
        """Check settings: keywords take precedence over a transformers GenerationConfig, which does over defaults.

        As in transformers, a keyword that is None switches off what the other two set.

        Raises:
            RequestError: with each wrong setting, its value, and what is allowed.
        """
        _refuse_quantized(given.get("cache_implementation"))
        off: dict[str, Any] = {name: _NONE.get(name) for name, value in given.items() if value is None}
        given = {name: value for name, value in given.items() if value is not None and name not in _WITHOUT_EFFECT}
        base = {} if generation_config is None else from_generation_config(generation_config, given)
        if "temperature" in off and "temperature" in base:  # it samples
            off["temperature"] = 1.0
        values = {**(defaults or {}), **base, **off, **given}
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise RequestError(f"settings refused: {describe(error, cls, _ELSEWHERE)}") from None


def from_generation_config(config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a transformers GenerationConfig; keywords in ``given`` take precedence.

    As in transformers, ``do_sample`` implies top_k=50 unless top_k is set.

    Raises:
        RequestError: for unsupported options (beam search, contrastive search, …), by name.
    """
    if not hasattr(config, "to_dict"):
        raise RequestError(f"generation_config={config!r}: give a transformers GenerationConfig, or use keywords")
    values = {name: value for name, value in config.to_dict().items() if value is not None}
    settings = {name: values.pop(name) for name in SAME_NAME if name in values}
    if "stop_strings" in values:
        settings["stop"] = values.pop("stop_strings")
    if values.pop("do_sample", False) and {**settings, **given}.get("temperature") != 0:
        settings = {"temperature": 1.0, "top_k": 50, **settings}
    else:
        settings = {name: value for name, value in settings.items() if name not in _SAMPLING_ONLY}
    _refuse(values)
    return settings


def with_effect(config: Any) -> dict[str, Any]:
    """Return those of transformers' own options that a GenerationConfig sets and that may decide the text."""
    from transformers import GenerationConfig

    neutral = {**_NEUTRAL, **_OFF, "do_sample": False, "temperature": 1.0, "repetition_penalty": 1.0}
    values = {name: getattr(config, name, None) for name in vars(GenerationConfig())}
    return {name: value for name, value in values.items() if _has_effect(name, value, neutral)}


def _has_effect(name: str, value: Any, neutral: Mapping[str, Any]) -> bool:
    return value is not None and name not in _WITHOUT_EFFECT and not (name in neutral and value == neutral[name])


def _refuse_quantized(implementation: Any) -> None:
    if implementation == "quantized":
        raise RequestError("cache_implementation='quantized': specdec doesn't quantize keys and values; leave it out")


def _refuse(values: Mapping[str, Any]) -> None:
    """Refuse the remaining options of a GenerationConfig, unless they have no effect."""
    _refuse_quantized(values.get("cache_implementation"))
    refused = [f"{name}={value!r}" for name, value in values.items() if _has_effect(name, value, _NEUTRAL)]
    if refused:
        raise RequestError(
            f"generation_config has options that specdec doesn't support: {', '.join(sorted(refused))}; remove them, "
            "or use model.generate for this request"
        )
