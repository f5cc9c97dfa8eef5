"""The published lookahead decoding, written a second time and on its own, as the yardstick of this project's.

Greedy, one prompt at a time, no part of ``specdec``: what the strategy of this project gains or loses against the
published algorithm is measured against this file, step for step, and a shared mistake can't hide in shared code. It
follows the paper (Fu et al. 2024, arXiv 2402.02057) in the details its authors' own package, ``lade`` 0.0.2, settles:

* the window starts as random ids of the prompt, and its other levels fill during N-2 steps that neither verify nor
  harvest, the prefill among them;
* every later step harvests W n-grams before the window moves, and the window moves by one whatever was accepted;
* the pool keeps the G latest continuations of a key, and a step tries them all, each as a chain of its own;
* a candidate that matches in full loses the model's token after it: N-1 tokens a step at most. ``repair_bonus`` takes
  that token, as the paper has it.

The prompt as a source of n-grams (``pool_from_prompt``) came to the package later and is off there by default.
"""

import random
from dataclasses import dataclass, field
from itertools import chain

import torch
from transformers import DynamicCache, PreTrainedModel

from specdec.models.architecture import cache_argument


@dataclass(frozen=True)
class Settings:
    """The sizes of the algorithm and the two switches of this reference.

    Attributes:
        ngram: N, the tokens of an n-gram; the window has N-1 levels.
        window: W, the columns of the window.
        guesses: G, the continuations kept, and so tried, per key.
        repair_bonus: whether a full match is followed by the model's own token.
        pool_from_prompt: whether the prompt and the accepted tokens feed the pool too.
    """

    ngram: int
    window: int
    guesses: int
    repair_bonus: bool = False
    pool_from_prompt: bool = False

    def __post_init__(self) -> None:
        if self.ngram < 3 or self.window < 1 or self.guesses < 1:
            raise ValueError(
                f"lookahead takes N >= 3, W >= 1 and G >= 1, not {self.ngram}, {self.window} and {self.guesses}"
            )


class Pool:
    """For each token the latest ``guesses`` continuations seen after it, oldest first."""

    def __init__(self, guesses: int) -> None:
        self._guesses = guesses
        self._continuations: dict[int, list[tuple[int, ...]]] = {}

    def insert(self, ngram: list[int]) -> None:
        """Files an n-gram under its first token; one that is there already becomes the latest."""
        kept = self._continuations.setdefault(ngram[0], [])
        continuation = tuple(ngram[1:])
        if continuation in kept:
            kept.remove(continuation)
        kept.append(continuation)
        del kept[: -self._guesses]

    def candidates(self, key: int) -> list[tuple[int, ...]]:
        return list(self._continuations.get(key, ()))


@dataclass
class State:
    """The state that one call carries from step to step.

    Attributes:
        history: the prompt and every accepted token; the last one is not in the cache yet.
        levels: the filled levels of the window, the current token left out of the first.
        pool: the n-grams harvested so far.
        cache: keys and values of ``history`` without its last token.
    """

    history: list[int]
    levels: list[list[int]]
    pool: Pool
    cache: DynamicCache = field(default_factory=DynamicCache)


@torch.inference_mode()
def decode(  # noqa: PLR0913, PLR0917
    model: PreTrainedModel,
    prompt_ids: list[int],
    max_new_tokens: int,
    N: int,  # noqa: N803
    W: int,  # noqa: N803
    G: int,  # noqa: N803
    seed: int,
    repair_bonus: bool,
    pool_from_prompt: bool = False,
    eos_token_ids: frozenset[int] = frozenset(),
) -> tuple[list[int], int]:
    """Greedy lookahead decoding.

    Returns:
        The new tokens, the one that ended the text included, and the number of forward passes, the prefill included.
    """
    settings = Settings(N, W, G, repair_bonus, pool_from_prompt)
    state = start(prompt_ids, settings, random.Random(seed))
    num_steps = 0
    while not _finished(state.history[len(prompt_ids) :], max_new_tokens, eos_token_ids):
        run = step(model, state, settings) if num_steps else prefill(model, state)
        num_steps += 1
        for token in run:
            state.history.append(token)
            if pool_from_prompt and len(state.history) >= N:
                state.pool.insert(state.history[-N:])
            if token in eos_token_ids:
                break
    return state.history[len(prompt_ids) :][:max_new_tokens], num_steps


def step_mask(N: int, W: int, num_candidates: int) -> torch.Tensor:  # noqa: N803
    """Return which token of a step sees which: one row and one column for each, in the order they are fed."""
    return _visibility([W - 1] + [W] * (N - 2), num_candidates, N - 1)


def start(prompt_ids: list[int], settings: Settings, source: random.Random) -> State:
    """The state before the prefill: a random first level, and a pool that is empty unless the prompt feeds it."""
    first = [source.choice(prompt_ids) for _ in range(settings.window + settings.ngram - 3)]
    state = State(list(prompt_ids), [first], Pool(settings.guesses))
    if settings.pool_from_prompt:
        for end in range(settings.ngram, len(prompt_ids) + 1):
            state.pool.insert(prompt_ids[end - settings.ngram : end])
    return state


def prefill(model: PreTrainedModel, state: State) -> list[int]:
    """The first step: the prompt followed by the first level, all causal. Returns the one accepted token."""
    num_prompt, first = len(state.history), state.levels[0]
    tokens = [*state.history, *first]
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    greedy = _greedy(model, state.cache, tokens, list(range(len(tokens))), causal)
    state.cache.crop(-len(first))
    state.levels = [first[1:], greedy[num_prompt:]]
    return [greedy[num_prompt - 1]]


def step(model: PreTrainedModel, state: State, settings: Settings) -> list[int]:
    """Any later step: feeds the window and the candidates, moves the window on and returns the accepted tokens."""
    current, position = state.history[-1], len(state.history) - 1
    warming_up = len(state.levels) < settings.ngram - 1
    candidates = [] if warming_up else state.pool.candidates(current)
    window = [current, *chain.from_iterable(state.levels)]
    greedy = _greedy(
        model,
        state.cache,
        [*window, *chain.from_iterable(candidates)],
        [position + offset for offset in _offsets(state.levels, candidates)],
        _visibility([len(level) for level in state.levels], len(candidates), settings.ngram - 1),
    )
    newest = greedy[len(window) - len(state.levels[-1]) : len(window)]
    winner, run = _verify(candidates, greedy[0], greedy[len(window) :], settings)
    source = position + len(window) + winner * (settings.ngram - 1)
    _keep(state.cache, position + 1, source, len(run) - 1)
    if warming_up:
        state.levels = [level[1:] for level in [*state.levels, newest]]
    else:
        _harvest(state.pool, current, [*state.levels, newest])
        state.levels = [state.levels[1][1:], *state.levels[2:], newest]
    return run


def _finished(new_tokens: list[int], max_new_tokens: int, eos_token_ids: frozenset[int]) -> bool:
    return len(new_tokens) >= max_new_tokens or bool(new_tokens and new_tokens[-1] in eos_token_ids)


def _offsets(levels: list[list[int]], candidates: list[tuple[int, ...]]) -> list[int]:
    """Return the position of each token of a step relative to the current token."""
    offsets = list(range(len(levels[0]) + 1))
    for depth, level in enumerate(levels[1:], start=1):
        offsets += range(depth, depth + len(level))
    for candidate in candidates:
        offsets += range(1, len(candidate) + 1)
    return offsets


def _visibility(widths: list[int], num_candidates: int, candidate_length: int) -> torch.Tensor:
    """The mask of a step whose levels are ``widths`` long, the first without the current token."""
    base = widths[0] + 1
    window = base + sum(widths[1:])
    size = window + num_candidates * candidate_length
    visible = torch.zeros(size, size, dtype=torch.bool)
    visible[:base, :base] = torch.ones(base, base, dtype=torch.bool).tril()
    for depth, width in enumerate(widths[1:], start=1):
        for column in range(width):
            row = base + (depth - 1) * width + column
            visible[row, : column + 1] = True
            visible[row, base + column : row + 1 : width] = True
    for first in range(window, size, candidate_length):
        last = first + candidate_length
        visible[first:last, 0] = True
        visible[first:last, first:last] = torch.ones(candidate_length, candidate_length, dtype=torch.bool).tril()
    return visible


def _greedy(
    model: PreTrainedModel, cache: DynamicCache, tokens: list[int], positions: list[int], visible: torch.Tensor
) -> list[int]:
    """One forward pass, all of whose tokens see the whole cache: the model's choice after each of them."""
    past = cache.get_seq_length()
    mask = torch.zeros(1, 1, len(tokens), past + len(tokens), dtype=model.dtype)
    mask[0, 0, :, past:].masked_fill_(~visible, torch.finfo(model.dtype).min)
    logits = model(
        torch.tensor([tokens], device=model.device),
        attention_mask=mask.to(model.device),
        position_ids=torch.tensor([positions], device=model.device),
        use_cache=True,
        **{cache_argument(model): cache},
    ).logits
    choices: list[int] = logits[0].argmax(-1).tolist()
    return choices


def _verify(
    candidates: list[tuple[int, ...]], first: int, greedy: list[int], settings: Settings
) -> tuple[int, list[int]]:
    """The candidate with the longest prefix that the model agrees with, the first of equals, and the tokens it yields.

    The tokens are that prefix and the model's own choice after it. As published, a full match counts as one short.
    """
    length = settings.ngram - 1
    cap = length if settings.repair_bonus else length - 1
    best, run = 0, [first]
    for index, candidate in enumerate(candidates):
        choices = [first, *greedy[index * length : (index + 1) * length]]
        matched = 0
        while matched < cap and candidate[matched] == choices[matched]:
            matched += 1
        if matched >= len(run):
            best, run = index, choices[: matched + 1]
    return best, run


def _keep(cache: DynamicCache, end: int, source: int, count: int) -> None:
    """Leaves the first ``end`` entries of the cache and, right after them, the ``count`` entries from ``source`` on."""
    for layer in cache.layers:
        for entries in (layer.keys, layer.values):
            entries[..., end : end + count, :] = entries[..., source : source + count, :].clone()
    cache.crop(end + count - cache.get_seq_length())


def _harvest(pool: Pool, current: int, levels: list[list[int]]) -> None:
    """Files every column of the window, which the newest level completes to an n-gram."""
    base = [current, *levels[0]]
    for column in zip(base, *levels[1:], strict=True):
        pool.insert(list(column))
