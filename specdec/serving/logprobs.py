"""Log-probabilities: of the model's own distribution at each emitted token, before any setting changes it."""

from dataclasses import dataclass
from typing import Any

import torch

from specdec.decoding.record import Outcome
from specdec.greatest import greatest_of


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the likeliest in its place, likeliest first."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


def logprobs_of(outcome: Outcome, tokenizer: Any, num_top: int | None) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of the tokens that a step emitted; none where None are wanted."""
    if num_top is None:
        return ()
    return tuple(
        _logprob_of(token, logits, tokenizer, num_top)
        for token, logits in zip(outcome.tokens, outcome.logits, strict=True)
    )


def _logprob_of(token: int, logits: torch.Tensor, tokenizer: Any, num_top: int) -> TokenLogprob:
    logprobs = logits.double().log_softmax(-1)
    top: tuple[tuple[str, float], ...] = ()
    if num_top:
        values, ids = greatest_of(logprobs, num_top)
        top = tuple(
            (text_of(other, tokenizer), value) for other, value in zip(ids.tolist(), values.tolist(), strict=True)
        )
    return TokenLogprob(text_of(token, tokenizer), float(logprobs[token]), top)


def text_of(token: int, tokenizer: Any) -> str:
    """One token by itself, special ones included."""
    return str(tokenizer.decode([token]))
