"""Plain decoding, written without specdec: the yardstick of losslessness."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch


def keyed_gumbel(seed: int, position: int, count: int) -> np.ndarray:
    """The noise as documented: Philox 4x64, key (seed, 0), counter (0, position, 0, 0)."""
    raw = np.random.Philox(key=[seed, 0], counter=[0, position, 0, 0]).random_raw(count)
    return -np.log(-np.log(((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52))


def cache_name(model: Any) -> str:
    """What a model's forward and output call the cache: ``cache`` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


# The tokens that may follow some new tokens, (vocab,), bool, without ends of text; and whether the text may end.
Allowed = Callable[[list[int]], tuple[np.ndarray, bool]]


def anything(new_tokens: list[int]) -> tuple[np.ndarray, bool]:
    """No constraint."""
    return np.array(True), True


def decode_model(
    model: Any,
    prompt: Sequence[int],
    count: int,
    seed: int | None,
    eos: Collection[int] = (0, 1),
    allowed: Allowed = anything,
) -> list[int]:
    """Greedy (seed None) or temperature-1 decoding on ``model(...)`` with its own cache."""
    tokens, cache, taken_by = list(prompt), None, cache_name(model)
    has_positions = "position_ids" in inspect.signature(model.forward).parameters
    feed = tokens
    for _ in range(count):
        positions = torch.arange(len(tokens) - len(feed), len(tokens), device=model.device)[None]
        own = {"position_ids": positions} if has_positions else {}  # Bamba counts from 0 in each pass by itself
        with torch.no_grad():
            output = model(torch.tensor([feed], device=model.device), use_cache=True, **{taken_by: cache}, **own)
        logits, cache = output.logits[0, -1].float().cpu(), output[taken_by]
        mask, may_end = allowed(tokens[len(prompt) :])
        if not mask.any():
            break
        mask = np.broadcast_to(mask, len(logits)).copy()
        mask[list(eos)] = may_end
        logits = logits.masked_fill(torch.from_numpy(~mask), -torch.inf)
        noise = 0.0 if seed is None else keyed_gumbel(seed, len(tokens), len(logits))
        with np.errstate(divide="ignore"):
            scores = logits.numpy() if seed is None else np.log(logits.softmax(-1).double().numpy()) + noise
        feed = [int(np.argmax(scores))]
        tokens += feed
        if feed[0] in eos:
            break
    return tokens[len(prompt) :]


def decode_law(
    law: Callable[[tuple[int, ...]], Sequence[float]], prompt: Sequence[int], count: int, seed: int | None
) -> list[int]:
    """The same for a law over a small vocabulary."""
    tokens = list(prompt)
    for _ in range(count):
        p = np.array(law(tuple(tokens)))
        scores = p if seed is None else np.log(p) + keyed_gumbel(seed, len(tokens), len(p))
        tokens.append(int(np.argmax(scores)))
    return tokens[len(prompt) :]
