"""Log-probabilities: of the model's own distribution at each emitted token, before any setting changes it."""

from dataclasses import dataclass

import torch

from specdec.decoding.record import Outcome
from specdec.greatest import greatest_of
from specdec.serving.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the likeliest in its place, likeliest first."""

    token: int
    text: str
    logprob: float
    top: tuple["TokenLogprob", ...] = ()


def logprobs_of(outcome: Outcome, texts: TokenTexts, num_top: int | None) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of the tokens that a step emitted; none where None are wanted."""
    if num_top is None:
        return ()
    return tuple(
        _logprob_of(token, logits, texts, num_top) for token, logits in zip(outcome.tokens, outcome.logits, strict=True)
    )


def _logprob_of(token: int, logits: torch.Tensor, texts: TokenTexts, num_top: int) -> TokenLogprob:
    logprobs = logits.double().log_softmax(-1)
    top: tuple[TokenLogprob, ...] = ()
    if num_top:
        values, ids = greatest_of(logprobs, num_top)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        top = tuple(TokenLogprob(other, texts.of(other), value) for other, value in pairs)
    return TokenLogprob(token, texts.of(token), float(logprobs[token]), top)
