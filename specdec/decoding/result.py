"""Results of requests, and the chunks of text that a caller receives while a request is decoded."""

from dataclasses import dataclass
from typing import Any

from specdec.decoding.request_state import RequestState
from specdec.decoding.stats import Stats
from specdec.decoding.text.detokenizer import TextDecoder
from specdec.errors import Guard, in_one_line, plural, shortened
from specdec.numerics import Numerics
from specdec.record import FinishReason

_SHOWN = 48  # characters of the text


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of one request.

    Attributes:
        token_ids: the new tokens, including a generated end-of-text id.
        text: of the new tokens, cut at a stop string; None without a tokenizer.
        seed: reproduces the text.
        numerics: whether the bits of logits, and so the text, may depend on the strategy, and why.
        notes: settings that were left out, and other remarks.
        lossless: False if the acceptance rule doesn't preserve the model's distribution, or weights are rounded.
        parsed: the value of a text under a constraint, such as an object of the schema's type; None if the text is
            incomplete, which notes explain.
        ties: the indices of new tokens whose runner-up scored the same within numerical noise: another strategy's text
            may differ from there on. Empty in exact numerics.
    """

    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    stats: Stats
    seed: int
    numerics: Numerics
    error: Exception | None = None
    notes: tuple[str, ...] = ()
    lossless: bool = True
    ties: tuple[int, ...] = ()
    parsed: Any = None

    def __repr__(self) -> str:
        shown = shortened(repr(self.text if self.text is not None else list(self.token_ids)), _SHOWN)
        if self.error is not None:
            return f"Result({shown}, error: {self.error})"
        return (
            f"Result({shown}, {plural(self.stats.num_tokens, 'token')} in {plural(self.stats.steps, 'step')}, "
            f"{self.stats.tokens_per_second:.1f} tokens/s, {self.finish_reason})"
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """The text and tokens of one step.

    Attributes:
        text: ends at a whole character and before any beginning of a stop string, so it may lag ``token_ids``.
        result: set in the last chunk of a request, whose ``text`` is complete.
    """

    token_ids: tuple[int, ...]
    text: str
    index: int = 0
    result: Result | None = None


def chunk_of(request: RequestState) -> Chunk:
    """The chunk of a request that goes on."""
    return Chunk(request.take(), "" if request.decoder is None else request.decoder.take(), request.index)


def last_chunk_of(
    request: RequestState, tokenizer: Any | None, *, numerics: Numerics, lossless: bool, notes: tuple[str, ...]
) -> Chunk:
    """The chunk of a request that has ended, with its result."""
    tokens, decoder, text = request.take(), request.decoder, ""
    finish_reason, fault, whole = request.finish_reason, request.error, None
    assert finish_reason is not None, "the request has ended"
    with Guard("the tokenizer") as guard:
        if decoder is not None:
            text = decoder.take() + decoder.finish()
            whole = decoder.text
        elif tokenizer is not None:
            prompt = request.tokens[: request.prompt_length]
            whole = TextDecoder.of(tokenizer, request.settings, prompt).text_of(request.new_tokens)
    if guard.error is not None:
        finish_reason, fault = "error", fault or guard.error
    parsed, remarks = _parsed(request, whole, tokenizer)
    result = Result(
        token_ids=tuple(request.new_tokens),
        text=whole,
        finish_reason=finish_reason,
        stats=request.stats,
        seed=request.randomness.seed,
        error=fault,
        notes=(*notes, *remarks),
        lossless=lossless,
        numerics=numerics,
        ties=request.ties(2 * numerics.noise),  # either score may move by the noise
        parsed=parsed,
    )
    return Chunk(tokens, text, request.index, result)


def _parsed(request: RequestState, text: str | None, tokenizer: Any | None) -> tuple[Any, tuple[str, ...]]:
    """The value of a text under a constraint, or None with a note."""
    constraint, state = request.settings.constraint, request.constraint
    if constraint is None or state is None or text is None or request.error is not None:
        return None, ()
    try:
        if not state.is_accepting:
            return None, ("parsed is None: the text ended before the constraint was met",)
        tokens = request.new_tokens
        written = tokens[:-1] if tokens[-1] in request.eos_token_ids else tokens
        prompt = request.tokens[: request.prompt_length]
        whole = TextDecoder.of(tokenizer, request.settings.model_copy(update={"stop": ()}), prompt)
        complete = whole.text_of(written)
        if not text.startswith(complete):
            return None, ("parsed is None: the text was cut at a stop string",)
        return constraint.parse(complete), ()
    except Exception as error:  # a type's own validator
        return None, (f"parsed is None: {in_one_line(error)}",)
