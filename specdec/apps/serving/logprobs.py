"""Log-probabilities of emitted tokens and of prompts in the model's own distribution, before any setting is applied."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.apps.serving.echo import Echo
from specdec.apps.serving.token_texts import TokenTexts
from specdec.decoding.request_state import RequestState
from specdec.record import Outcome, PromptLogprobs
from specdec.sampling.logprobs import token_logprobs


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the top tokens at its position, most likely first.

    Attributes:
        text: the token's text; a replacement character for a part of a character.
        logprob: None for a prompt's first token, which nothing precedes.
        coded: its UTF-8 bytes; None if the tokenizer doesn't provide those of a part of a character.
        offset: the index of the answer's character at which the token's text starts; 0 for a top token.
    """

    token: int
    text: str
    logprob: float | None
    top: tuple["TokenLogprob", ...] = ()
    coded: bytes | None = None
    offset: int = 0


def logprobs_of(
    outcome: Outcome, texts: TokenTexts, num_top: int | None, num_before: int = 0
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of a step's emitted tokens; empty if ``num_top`` is None.

    Args:
        num_before: characters of the answer before its first new token.
    """
    if num_top is None or not outcome.tokens:
        return ()
    request = outcome.request
    assert isinstance(request, RequestState), "a batch's own records have its requests"
    assert request.decoder is not None, "a server has a tokenizer"
    decoder = request.decoder
    offsets = decoder.offsets[len(decoder.offsets) - len(outcome.tokens) :]
    found = token_logprobs(torch.stack([*outcome.logits]), outcome.tokens, num_top)
    return tuple(
        _token(token, logprob, texts, _tops(ids, values, texts), num_before + offset)
        for token, offset, logprob, ids, values in zip(
            outcome.tokens, offsets, *(part.tolist() for part in found), strict=True
        )
    )


def prompt_logprobs_of(
    parts: Sequence[PromptLogprobs], tokens: Sequence[int], texts: TokenTexts, echo: Echo
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of a prompt's tokens.

    Args:
        parts: of all tokens but the first, in order.
        tokens: the prompt.
    """
    entries = [_token(tokens[0], None, texts, (), echo.offsets[0])]
    for part in parts:
        numbers = part.logprobs.tolist(), part.top_ids.tolist(), part.top_logprobs.tolist()
        for position, (logprob, ids, values) in enumerate(zip(*numbers, strict=True), part.start):
            entries.append(_token(tokens[position], logprob, texts, _tops(ids, values, texts), echo.offsets[position]))
    return tuple(entries)


def _tops(ids: list[int], logprobs: list[float], texts: TokenTexts) -> tuple[TokenLogprob, ...]:
    return tuple(_token(other, value, texts, (), 0) for other, value in zip(ids, logprobs, strict=True))


def _token(
    token: int, logprob: float | None, texts: TokenTexts, top: tuple[TokenLogprob, ...], offset: int
) -> TokenLogprob:
    return TokenLogprob(token, texts.of(token), logprob, top, texts.bytes_of(token), offset)
