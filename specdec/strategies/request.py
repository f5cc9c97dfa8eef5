"""A request as its drafter sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specdec.constraints.path_state import PathState
from specdec.inputs.base import PromptInputs


@dataclass(frozen=True, slots=True)
class Retained:
    """A drafter's state about part of a text, cached with the keys and values of that part.

    Attributes:
        state: the strategy's own; it isn't modified.
        num_bytes: its size, counted against the memory for cached keys and values.
    """

    state: Any
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its drafter sees it: the text so far, settings and constraint; passed to ``start``.

    Attributes:
        tokens: a live view of prompt and committed tokens; the last one is the root of the next tree.
        warp: applies the request's settings and constraint to raw logits after some draft tokens: (drafted, logits)
            -> distribution, both ``(vocab,)``. At temperature 0 the distribution is that of temperature 1.
        noise: returns the noise, ``(vocab,)``, that the acceptance rule adds to the log-probabilities at an absolute
            position before it takes the argmax. None at temperature 0, and under rules where a drafter that knew the
            noise would bias the text.
        constraint: returns the constraint's state after the committed tokens; None if the text is free.
        num_reused: the number of positions at the start of the prompt whose keys and values were cached before the
            request. They aren't prefilled again, so ``Drafter.read`` begins after them.
        reference: a text that the request's is expected to resemble, such as the one to correct; empty without one.
        retained: the results of ``Drafter.retain`` for an earlier request of the same strategy and model, in the order
            of the text from position 0. The two texts agree in at least their first ``num_reused + 1`` tokens; drop
            state about positions from ``num_reused`` on. Empty if nothing was retained.
        inputs: what the prompt holds besides its tokens; None for text alone.
    """

    tokens: Sequence[int]
    prompt_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    temperature: float
    rng: np.random.Generator
    warp: Callable[[Sequence[int], torch.Tensor], torch.Tensor] = lambda _, logits: softmax(logits)
    noise: Callable[[int], torch.Tensor] | None = None
    constraint: Callable[[], PathState | None] = lambda: None
    reference: Sequence[int] = ()
    num_reused: int = 0
    retained: tuple[Retained, ...] = ()
    inputs: PromptInputs | None = None

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    def text(self, num_tokens: int | None = None) -> Sequence[int]:
        """Return the first tokens (default: all) without placeholders, for models that read text alone."""
        tokens = self.tokens if num_tokens is None else self.tokens[:num_tokens]
        if self.inputs is None or not self.inputs.placeholders:
            return tokens
        return [token for token in tokens if token not in self.inputs.placeholders]

    def until_eos(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens up to the first end-of-text id, inclusive, since no token follows it."""
        for index, token in enumerate(tokens):
            if token in self.eos_token_ids:
                return tokens[: index + 1]
        return tokens

    def draw(self, weights: torch.Tensor) -> int:
        """Draw a token from weights, ``(vocab,)``, which aren't all zero and need not sum to one."""
        cumulative = weights.double().cumsum(0)
        place = self.rng.random() * float(cumulative[-1])
        return int(torch.searchsorted(cumulative, place, right=True).clamp_max(int(weights.nonzero().max())))

    def random_tokens(self, count: int) -> list[int]:
        """Draw tokens of the history, with replacement; end-of-text ids are replaced by the root."""
        drawn = [self.tokens[index] for index in self.rng.integers(len(self.tokens), size=count)] if count else []
        return [self.root if token in self.eos_token_ids else token for token in drawn]


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the distribution of logits, in float32 or better."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
