"""One request while it is decoded: its tokens, randomness and commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import torch

from specdec.constraints.path_state import PathState
from specdec.decoding.contexts import Context
from specdec.decoding.detokenizer import TextDecoder
from specdec.decoding.plan import RequestPlan
from specdec.decoding.stats import Stats
from specdec.decoding.stopping import meets_stop_condition, reached_limit
from specdec.errors import PluginError
from specdec.record import FinishReason
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.strategies.base import Drafter
from specdec.strategies.request import Request
from specdec.strategies.retained import Retained
from specdec.target import CacheRow
from specdec.verifiers.base import Verdict


class TokenView(Sequence[int]):
    """A live, read-only view of a list of tokens; slices are copies."""

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
class RequestState:
    """A request's prompt and committed tokens, with all that belongs to the request alone.

    Attributes:
        tokens: the last is the root, whose keys and values aren't cached yet.
        constraint: the constraint's state after the committed tokens; None if the text is free.
        decoder: None unless text is needed while decoding: for stop strings and streams.
        index: the request's place in the caller's list.
        context: whose row the request continues, and leaves its own row to.
        row: set while the request is in the cache.
        retained: the strategy's state about the row's first tokens, from an earlier request.
        num_reported: the first positions whose signals the drafter has received, in this or an earlier request.
        notes: the engine's and the drafter's, once the request has ended.
        best_two: of each new token, its score and the runner-up's, in fast numerics; on the model's device.
        num_taken: new tokens that the caller has received.
        is_added: True once the request was added to a scheduler.
    """

    tokens: list[int]
    plan: RequestPlan
    eos_token_ids: frozenset[int]
    randomness: Randomness
    warper: Warper
    decoder: TextDecoder | None
    constraint: PathState | None = None
    index: int = 0
    context: Context | None = None
    row: CacheRow | None = None
    drafter: Drafter | None = None
    retained: tuple[Retained, ...] = ()
    num_reported: int = 0
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    notes: tuple[str, ...] = ()
    stats: Stats = field(default_factory=Stats)
    prompt_length: int = field(init=False)
    best_two: list[torch.Tensor | None] = field(default_factory=list)
    num_taken: int = 0
    is_added: bool = False
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def settings(self) -> Settings:
        """The plan's settings."""
        return self.plan.settings

    @property
    def strategy_name(self) -> str:
        """The name of the plan's strategy."""
        return self.plan.strategy.name

    @property
    def num_reused(self) -> int:
        """Tokens of the prompt that were cached before the request."""
        return self.stats.num_reused

    @property
    def capacity(self) -> int:
        """The number of tokens that the text may grow to."""
        return self.prompt_length + self.settings.max_new_tokens

    @property
    def is_prefilling(self) -> bool:
        """True until the first token is committed."""
        return len(self.tokens) == self.prompt_length

    @property
    def uncached_prefix(self) -> list[int]:
        """The committed tokens before the root that aren't cached: the rest of the prompt."""
        return self.tokens[0 if self.row is None else self.row.length : -1]

    @property
    def new_tokens(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def num_remaining(self) -> int:
        """The number of tokens that may still be generated."""
        return self.settings.max_new_tokens - (len(self.tokens) - self.prompt_length)

    @property
    def is_finished(self) -> bool:
        """True once no token will follow."""
        return self.finish_reason is not None

    def for_drafter(self, vocab_size: int) -> Request:
        """The request as its drafter sees it."""
        tokens, warper, shows_noise = self.tokens, self.warper, self.plan.verifier.is_keyed

        def warp(drafted: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            state = None if self.constraint is None else self.constraint.after(drafted)
            return warper.draft_probs([*tokens, *drafted] if warper.has_processors else (), logits, state)

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
            constraint=lambda: self.constraint,
            noise=noise if shows_noise and self.settings.temperature > 0.0 else None,
            num_reused=self.num_reused,
            retained=self.retained,
        )

    def commit(self, verdict: Verdict) -> Verdict:
        """Append a verdict's tokens up to the end of the text; return the part of the verdict that was kept."""
        num_committed = 0
        for token in verdict.tokens:
            self.tokens.append(token)
            num_committed += 1
            self._end_after(token)
            if self.is_finished:
                break
        if not self.stats.steps:
            self.stats.seconds_to_first_token = time.perf_counter() - self.began
        # One node per token: the last token is the next root, and the old root is node 0.
        return Verdict(verdict.path[:num_committed], verdict.tokens[:num_committed])

    def _end_after(self, token: int) -> None:
        """Set ``finish_reason`` if the text ends after this token, which is the last of ``tokens``."""
        try:
            is_stopped = meets_stop_condition(self.tokens, self.eos_token_ids, self.settings, self.decoder)
            is_complete = self.constraint is not None and self._completes_constraint(self.constraint, token)
        except Exception as error:  # a limit, or code of a caller or another library
            self.fail(error)
            return
        if is_stopped or is_complete:
            self.finish_reason = "stop"
        else:
            self.finish_reason = reached_limit(self.num_remaining, time.perf_counter() - self.began, self.settings)

    def _completes_constraint(self, state: PathState, token: int) -> bool:
        """Advance the constraint's state; return True if no token may follow."""
        if not state.allows(token):
            raise PluginError(
                f"verifier {type(self.plan.verifier).__name__} emitted {token}, which the constraint refuses"
            )
        self.constraint = state.follow(token) or state  # an end of text is no part of the constrained text
        return self.constraint.is_complete

    def ties(self, tie: float) -> tuple[int, ...]:
        """The indices of new tokens whose runner-up scored at most ``tie`` less."""
        scored = [index for index, pair in enumerate(self.best_two) if pair is not None]
        if not scored:
            return ()
        pairs = torch.stack([pair for pair in self.best_two if pair is not None]).double()
        margins = (pairs[:, 0] - pairs[:, 1]).tolist()
        return tuple(index for index, margin in zip(scored, margins, strict=True) if margin <= tie)

    def take(self) -> tuple[int, ...]:
        """The new tokens since the last call."""
        taken = tuple(self.tokens[self.prompt_length + self.num_taken :])
        self.num_taken += len(taken)
        return taken

    def fail(self, error: Exception) -> None:
        """End this request with an error, unless it has ended."""
        if not self.is_finished:
            self.finish_reason, self.error = "error", error
