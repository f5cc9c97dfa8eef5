"""The OpenAI API's changes to scores: a bias by token, and penalties for repeated tokens.

A token's score becomes mu[j] - c[j] * frequency_penalty - (c[j] > 0) * presence_penalty + logit_bias[j], where c[j]
is the count of j among the new tokens of the path (OpenAI API reference, "Frequency and presence penalties").
"""

from collections.abc import Mapping

import torch


class Bias:
    """Adds a constant to the scores of some tokens."""

    is_path_pure = True

    def __init__(self, by_token: Mapping[int, float], device: str) -> None:
        self._tokens = torch.tensor([*by_token], dtype=torch.long, device=device)
        self._added = torch.tensor([*by_token.values()], dtype=torch.float32, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores and the result: ``(batch, vocab)``; paths: ``(batch, tokens)``."""
        return scores.index_add(1, self._tokens, self._added.to(scores.dtype).expand(len(scores), -1))


class CountPenalty:
    """Lowers the scores of tokens that occur among the path's new tokens, by count and by presence."""

    is_path_pure = True

    def __init__(self, frequency: float, presence: float, prompt_length: int) -> None:
        self._frequency, self._presence, self._prompt_length = frequency, presence, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores and the result: ``(batch, vocab)``; paths with their prompts: ``(batch, tokens)``."""
        written = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))
        return scores - counts * self._frequency - (counts > 0) * self._presence
