"""One request while it is decoded: its tokens, randomness, stopping and commit."""

import time
from collections.abc import Mapping
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field
from functools import partial
from typing import Any, overload

import torch

from specdec.decoding.contexts import Context
from specdec.decoding.detokenizer import TextDecoder
from specdec.decoding.plan import Plan
from specdec.decoding.stats import Stats
from specdec.errors import failure
from specdec.record import FinishReason
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.strategies.base import Answers, Drafter, Request, Signal
from specdec.target import Row
from specdec.verifiers.base import Verdict


class TokenView(ReadOnly[int]):
    """A live, read-only view of a list of tokens; a slice is a copy."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and committed tokens of one request, with everything that is its own.

    The last of ``tokens`` is the root: its keys and values are not cached yet.
    """

    tokens: list[int]
    plan: Plan
    eos_token_ids: frozenset[int]
    randomness: Randomness
    warper: Warper
    decoder: TextDecoder | None  # only where text is needed while decoding: stop strings and streaming
    index: int = 0  # the request's place in the caller's list
    context: Context | None = None  # that it goes on from, and leaves its row to
    row: Row | None = None  # while it is in the cache
    drafter: Drafter | None = None
    prompt_signals: dict[Signal, list[tuple[int, Mapping[int, Any]]]] = field(default_factory=dict)
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    notes: tuple[str, ...] = ()  # of its drafter, once it has ended
    stats: Stats = field(default_factory=Stats)
    prompt_length: int = field(init=False)
    # Of each new token, in fast numerics: its score and its runner-up's, left on the device until the end.
    best_two: list[torch.Tensor | None] = field(default_factory=list)
    num_taken: int = 0  # new tokens that the caller has seen
    is_added: bool = False  # to a scheduler, which happens once
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def settings(self) -> Settings:
        """The settings of its plan."""
        return self.plan.settings

    @property
    def capacity(self) -> int:
        """The number of tokens that it may grow to."""
        return self.prompt_length + self.settings.max_new_tokens

    @property
    def is_reading(self) -> bool:
        """True until its first step."""
        return len(self.tokens) == self.prompt_length

    @property
    def trunk(self) -> list[int]:
        """The committed tokens before the root that the cache doesn't hold: what is left of the prompt."""
        return self.tokens[0 if self.row is None else self.row.length : -1]

    @property
    def new_tokens(self) -> list[int]:
        """The tokens that were generated so far."""
        return self.tokens[self.prompt_length :]

    @property
    def num_remaining(self) -> int:
        """The number of tokens that may still be generated."""
        return self.settings.max_new_tokens - (len(self.tokens) - self.prompt_length)

    @property
    def is_finished(self) -> bool:
        """True if no token will follow."""
        return self.finish_reason is not None

    def request(self, vocab_size: int) -> Request:
        """Return this sequence's request, as its drafter may see it."""
        tokens, warper, shows_noise = self.tokens, self.warper, self.plan.verifier.is_keyed

        def warp(drafted: ReadOnly[int], logits: torch.Tensor) -> torch.Tensor:
            return warper.draft_law([*tokens, *drafted] if warper.has_processors else (), logits)

        def noise(position: int) -> torch.Tensor:
            return self.randomness.foresee(position, vocab_size)

        return Request(
            tokens=TokenView(self.tokens),
            prompt_length=self.prompt_length,
            vocab_size=vocab_size,
            eos_token_ids=self.eos_token_ids,
            temperature=self.settings.temperature,
            rng=self.randomness.stream(self.plan.strategy.name),
            warp=warp,
            noise=noise if shows_noise and self.settings.temperature > 0.0 else None,
        )

    def commit(self, verdict: Verdict) -> Verdict:
        """Append the verdict's tokens one by one, up to an end of text, a stop string or the length; what was kept."""
        num_committed = 0
        for token in verdict.tokens:
            self.tokens.append(token)
            num_committed += 1
            self._end_behind(token)
            if self.is_finished:
                break
        if not self.stats.steps:
            self.stats.seconds_to_first_token = time.perf_counter() - self.began
        # The last token is the next root, so the path keeps one node per token: the old root and all but the last.
        return Verdict(verdict.path[:num_committed], verdict.tokens[:num_committed])

    def _end_behind(self, token: int) -> None:
        """End the text behind its last token if that was the end."""
        try:
            has_stop_string = self.decoder is not None and self.decoder.push(token)
        except Exception as error:  # a third party's code
            self.fail(failure("the tokenizer", error))
            return
        try:
            meets_criterion = self._meets_criterion()
        except Exception as error:  # a caller's own
            self.fail(failure("a stopping criterion", error))
            return
        if token in self.eos_token_ids or has_stop_string or meets_criterion:
            self.finish_reason = "stop"
        elif self.num_remaining == 0:
            self.finish_reason = "length"
        elif self.settings.max_time is not None and time.perf_counter() - self.began > self.settings.max_time:
            self.finish_reason = "time"

    def _meets_criterion(self) -> bool:
        """Return True if one of the caller's criteria ends the text; all are asked, as they may count."""
        if not self.settings.stopping_criteria:
            return False
        input_ids = torch.tensor([self.tokens])
        answers = [bool(criterion(input_ids, None)) for criterion in self.settings.stopping_criteria]
        return any(answers)

    def ties(self, tie: float) -> tuple[int, ...]:
        """The new tokens, by index, whose runner-up scored no more than ``tie`` less."""
        asked = [index for index, pair in enumerate(self.best_two) if pair is not None]
        if not asked:
            return ()
        pairs = torch.stack([pair for pair in self.best_two if pair is not None]).double()
        margins = (pairs[:, 0] - pairs[:, 1]).tolist()
        return tuple(index for index, margin in zip(asked, margins, strict=True) if margin <= tie)

    def take(self) -> tuple[int, ...]:
        """The new tokens that were not taken before."""
        taken = tuple(self.tokens[self.prompt_length + self.num_taken :])
        self.num_taken += len(taken)
        return taken

    def take_prompt_signals(self, signals: ReadOnly[Signal]) -> dict[Signal, Mapping[int, Any]]:
        """The answers about the prompt, by position; told once, and none afterwards."""
        taken, self.prompt_signals = self.prompt_signals, {}
        return {signal: Answers(partial(_by_position, taken.get(signal, ()))) for signal in signals}

    def fail(self, error: Exception) -> None:
        """End this sequence alone; one that has ended already stays as it is."""
        if not self.is_finished:
            self.finish_reason, self.error = "error", error


def _by_position(parts: ReadOnly[tuple[int, Mapping[int, Any]]]) -> dict[int, Any]:
    return {start + node: answer for start, told in parts for node, answer in told.items()}
