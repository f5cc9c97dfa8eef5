"""The keyword arguments of a request, with their types for type checkers and editors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from specdec.constraints.base import Constraint
from specdec.decoding.context import Context
from specdec.errors import RequestError
from specdec.record import StepRecord
from specdec.settings import Criterion, Processor
from specdec.strategies.base import Proposer

ProposerChoice = Proposer | str | list[Proposer | str] | tuple[Proposer | str, ...] | None

# A text that the answer is expected to resemble, or its ids.
ReferenceChoice = str | Sequence[int]

OnStep = Callable[[StepRecord], object] | None


class RequestOptions(TypedDict, total=False):
    """Settings by specdec's names (see ``Settings``) or transformers', and a tokenizer's output by its names."""

    generation_config: Any
    each: Sequence[Mapping[str, Any]] | None
    context: Context | Sequence[Context | None] | None
    reference: ReferenceChoice | Sequence[ReferenceChoice | None] | None

    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None
    no_repeat_ngram_size: int | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | Any
    stop: str | Sequence[str] | None
    skip_special_tokens: bool
    hidden_token_ids: Sequence[int]
    seed: int | Sequence[int] | None
    logits_processor: Processor | Sequence[Processor] | None
    stopping_criteria: Criterion | Sequence[Criterion] | None
    max_time: float | None
    constraint: Constraint | None
    keeps_scores: bool
    keeps_logits: bool
    prompt_logprobs: int | None

    do_sample: bool | None
    stop_strings: str | Sequence[str] | None
    num_return_sequences: int | None
    streamer: Any

    tools: Sequence[Any] | None
    documents: Sequence[Any] | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    enable_thinking: bool

    input_ids: Any
    attention_mask: Any
    token_type_ids: Any


class GenerateOptions(RequestOptions, total=False):
    """The keyword arguments of ``Generator.generate`` and ``stream``."""

    proposer: ProposerChoice
    on_step: OnStep


def pop_generator_options(options: GenerateOptions) -> tuple[ProposerChoice, OnStep]:
    """Remove and return the options that aren't the request's: its strategy, and the function of each step.

    Raises:
        RequestError: for an ``on_step`` that can't be called.
    """
    proposer, on_step = options.pop("proposer", None), options.pop("on_step", None)
    if on_step is not None and not callable(on_step):
        raise RequestError(f"on_step={on_step!r}: give a function, which is called with the record of each step")
    return proposer, on_step
