"""Log-probabilities of emitted tokens in the model's own distribution, before any setting is applied."""

from dataclasses import dataclass

import torch

from specdec.decoding.request_state import RequestState
from specdec.record import Outcome
from specdec.sampling.topk import topk
from specdec.serving.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the top tokens at its position, most likely first.

    Attributes:
        text: the token's text; a replacement character for a part of a character.
        coded: its UTF-8 bytes; None if the tokenizer doesn't provide those of a part of a character.
        offset: for an emitted token, the index of the answer's character at which its text starts.
    """

    token: int
    text: str
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    coded: bytes | None = None
    offset: int = 0


def logprobs_of(outcome: Outcome, texts: TokenTexts, num_top: int | None) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of a step's emitted tokens; empty if ``num_top`` is None."""
    if num_top is None:
        return ()
    request = outcome.request
    assert isinstance(request, RequestState), "a batch's own records have its requests"
    assert request.decoder is not None, "a server has a tokenizer"
    decoder = request.decoder
    offsets = decoder.offsets[len(decoder.offsets) - len(outcome.tokens) :]
    return tuple(
        _logprob_of(token, logits, texts, num_top, offset)
        for token, logits, offset in zip(outcome.tokens, outcome.logits, offsets, strict=True)
    )


def _logprob_of(token: int, logits: torch.Tensor, texts: TokenTexts, num_top: int, offset: int) -> TokenLogprob:
    logprobs = logits.double().log_softmax(-1)
    top: tuple[TokenLogprob, ...] = ()
    if num_top:
        values, ids = topk(logprobs, num_top)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        top = tuple(TokenLogprob(other, texts.of(other), value, (), texts.bytes_of(other)) for other, value in pairs)
    return TokenLogprob(token, texts.of(token), float(logprobs[token]), top, texts.bytes_of(token), offset)
