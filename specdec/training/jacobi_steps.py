"""Jacobi decoding of many prompts side by side, by the iteration of ``jacobi``, to count the steps that it takes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from specdec.training.consistency import logits_of


@dataclass(slots=True)
class JacobiRow:
    """One text while it is decoded.

    Attributes:
        tokens: the prompt and the new tokens.
        num_new: new tokens that are wanted.
        draw: the source of randomness, for guesses from the text so far.
        guess: the n guesses after the last token.
        steps: passes so far.
        num_prompt: tokens of the prompt.
        has_ended: True after the end of the text, or with all new tokens.
    """

    tokens: list[int]
    num_new: int
    draw: np.random.Generator
    guess: list[int] = field(default_factory=list)
    steps: int = 0
    num_prompt: int = 0
    has_ended: bool = False

    def begin(self, num_guesses: int, ends: Collection[int]) -> None:
        """Set the first guesses."""
        self.num_prompt = len(self.tokens)
        self.guess = self._random(num_guesses, ends)

    def advance(self, predictions: Sequence[int], ends: Collection[int]) -> int:
        """Commit what the model predicted after the last token and each guess; return the number of right guesses."""
        right = 0
        while right < len(self.guess) and self.guess[right] == predictions[right]:
            right += 1
        if self.has_ended:
            return right
        self.steps += 1
        for token in predictions[: right + 1]:
            self.tokens.append(token)
            self.has_ended = token in ends or len(self.tokens) - self.num_prompt >= self.num_new
            if self.has_ended:
                return right
        filler = self._random(len(self.guess), ends)
        self.guess = [*predictions[right + 1 :], *filler[len(predictions) - right - 1 :]]
        return right

    def _random(self, count: int, ends: Collection[int]) -> list[int]:
        drawn = [self.tokens[index] for index in self.draw.integers(len(self.tokens), size=count)]
        return [self.tokens[-1] if token in ends else token for token in drawn]


@torch.no_grad()
def decode_by_jacobi(
    model: Any, rows: Sequence[JacobiRow], num_guesses: int, ends: Collection[int] = ()
) -> Sequence[JacobiRow]:
    """Decode all rows greedily to their ends; return them.

    Keys and values of wrong guesses stay in the cache, where no later token sees them.

    Args:
        model: a causal language model.
        rows: with their prompts.
        num_guesses: guesses per step, n.
        ends: tokens that end a text.
    """
    cache, device = DynamicCache(), model.device
    seen = _prefill(model, rows, cache)
    own = torch.ones(num_guesses + 1, num_guesses + 1, dtype=torch.bool, device=device).tril()
    offsets = torch.arange(num_guesses + 1, device=device)
    for row in rows:
        row.begin(num_guesses, ends)
    while not all(row.has_ended for row in rows):
        fed = torch.tensor([[row.tokens[-1], *row.guess] for row in rows], device=device)
        positions = torch.tensor([len(row.tokens) - 1 for row in rows], device=device)[:, None] + offsets
        before = seen[:, None].expand(-1, num_guesses + 1, -1)
        visible = torch.cat((before, own.expand(len(rows), -1, -1)), -1)
        predictions = logits_of(model, fed, positions, visible, cache).argmax(-1).tolist()
        right = [row.advance(each, ends) for row, each in zip(rows, predictions, strict=True)]
        accepted = offsets <= torch.tensor(right, device=device)[:, None]
        seen = torch.cat((seen, accepted), 1)
    return rows


def _prefill(model: Any, rows: Sequence[JacobiRow], cache: DynamicCache) -> torch.Tensor:
    """Cache the prompts but for their last tokens; return (rows, cached), True where a row has a token."""
    longest = max(len(row.tokens) for row in rows) - 1
    prompts = torch.tensor([row.tokens[:-1] + [0] * (longest + 1 - len(row.tokens)) for row in rows])
    tokens = prompts.view(len(rows), longest).long().to(model.device)
    positions = torch.arange(longest, device=model.device).expand_as(tokens)
    if longest:
        causal = torch.ones(longest, longest, dtype=torch.bool, device=model.device).tril()
        logits_of(model, tokens, positions, causal.expand(len(rows), -1, -1), cache)
    return positions < torch.tensor([len(row.tokens) - 1 for row in rows], device=model.device)[:, None]
