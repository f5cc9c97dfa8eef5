"""The results that a caller gets back: one for each request, and chunks of it while it is decoded."""

from dataclasses import dataclass
from typing import Any

from specdec.decoding.detokenizer import TextDecoder
from specdec.decoding.stats import Stats
from specdec.errors import failure, plural
from specdec.numerics import Numerics
from specdec.record import FinishReason, Outcome

_SHOWN = 48  # characters of the text


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of one request.

    ``token_ids`` are the new tokens only, an end-of-text id that was generated included. A stop string cuts ``text``
    alone, which is None without a tokenizer. ``seed`` reproduces the text. ``notes`` says what was left out, if
    anything. ``numerics`` says whether the last bits of logits, and so the text, could depend on the strategy, and why.
    ``lossless`` is False where the acceptance rule doesn't promise the model's own distribution, or weights are
    rounded. ``ties``: the new tokens, by index, whose runner-up was as good within the numerical noise, so that another
    strategy may go on from there differently; none where bits are exact.
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

    def __repr__(self) -> str:
        said = repr(self.text if self.text is not None else list(self.token_ids))
        shortened = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"
        if self.error is not None:
            return f"Result({shortened}, error: {self.error})"
        return (
            f"Result({shortened}, {plural(self.stats.num_tokens, 'token')} in {plural(self.stats.steps, 'step')}, "
            f"{self.stats.tokens_per_second:.1f} tokens/s, {self.finish_reason})"
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text and tokens that one step committed.

    ``text`` ends at a whole character and never has the beginning of a stop string in it, so it may lag behind
    ``token_ids``; the chunk that has a ``result`` is the last of its request and has the rest.
    """

    token_ids: tuple[int, ...]
    text: str
    index: int = 0
    result: Result | None = None


def chunk_of(
    outcome: Outcome, tokenizer: Any | None, *, numerics: Numerics, lossless: bool, notes: tuple[str, ...]
) -> Chunk:
    """The chunk that a step committed, with the result where that was the end."""
    sequence = outcome.request
    tokens, decoder = sequence.take(), sequence.decoder
    text = decoder.take() if decoder is not None else ""
    if outcome.finish_reason is None:
        return Chunk(tokens, text, sequence.index)
    whole, finish_reason, fault = None, outcome.finish_reason, outcome.error
    try:
        if decoder is not None:
            text += decoder.finish()
            whole = decoder.text
        elif tokenizer is not None:
            prompt = sequence.tokens[: sequence.prompt_length]
            whole = TextDecoder.of(tokenizer, sequence.settings, prompt).text_of(sequence.new_tokens)
    except Exception as error:  # a third party's code
        finish_reason, fault = "error", fault or failure("the tokenizer", error)
    result = Result(
        token_ids=tuple(sequence.new_tokens),
        text=whole,
        finish_reason=finish_reason,
        stats=sequence.stats,
        seed=sequence.randomness.seed,
        error=fault,
        notes=notes,
        lossless=lossless,
        numerics=numerics,
        ties=sequence.ties(2 * numerics.noise),  # each of two may move by the noise
    )
    return Chunk(tokens, text, sequence.index, result)
