"""One request while it is decoded: its tokens, randomness and commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import torch

from specdec.constraints.path_state import PathState
from specdec.decoding.context import Context
from specdec.decoding.stats import Stats
from specdec.decoding.strategy import Strategy
from specdec.decoding.text.detokenizer import TextDecoder
from specdec.errors import Guard, PluginError
from specdec.inputs.base import PromptInputs
from specdec.layout import KeyedDraw
from specdec.record import FinishReason
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.strategies.base import Drafter
from specdec.strategies.request import Request, Retained
from specdec.target import CacheRow
from specdec.verifiers.base import Verifier


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

    Requests with different strategies, acceptance rules and settings may share a pass.

    Attributes:
        tokens: the last is the root, whose keys and values aren't cached yet.
        strategy: bound for the ``reads_q`` and ``is_keyed`` of ``verifier``.
        inputs: what the prompt holds besides tokens; None for text alone.
        decoder: None unless text is needed while decoding: for stop strings and streams.
        constraint: the constraint's state after the committed tokens; None if the text is free.
        reference: a text that the request's is expected to resemble; its drafter reads it.
        index: the request's place in the caller's list.
        context: whose row the request continues, and leaves its own row to.
        row: set while the request is in the cache.
        num_reported: the first positions whose signals the drafter has received, in this or an earlier request.
        notes: the engine's and the drafter's, once the request has ended.
        best_two: of each new token, its score and the runner-up's, in fast numerics; on the model's device.
        num_taken: new tokens that the caller has received.
        reads_logits: True if the verifier reads full logits on the host, unless the pass draws its tokens: the token
            isn't a plain argmax then, and no processor of the caller's needs the model's device.
        draw: how a backend may draw the request's tokens itself; None if it can't.
        reads_prompt_logits: True if the settings or the strategy need the logits at a prompt's tokens.
        is_added: True once the request was added to a scheduler.
    """

    tokens: list[int]
    strategy: Strategy
    verifier: Verifier
    settings: Settings
    eos_token_ids: frozenset[int]
    randomness: Randomness
    warper: Warper
    inputs: PromptInputs | None = None
    decoder: TextDecoder | None = None
    constraint: PathState | None = None
    reference: Sequence[int] = ()
    index: int = 0
    context: Context | None = None
    row: CacheRow | None = None
    drafter: Drafter | None = None
    num_reported: int = 0
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    notes: tuple[str, ...] = ()
    stats: Stats = field(default_factory=Stats)
    prompt_length: int = field(init=False)
    reads_logits: bool = field(init=False)
    draw: KeyedDraw | None = field(init=False)
    reads_prompt_logits: bool = field(init=False)
    best_two: list[torch.Tensor | None] = field(default_factory=list)
    num_taken: int = 0
    is_added: bool = False
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.prompt_length, warper = len(self.tokens), self.warper
        self.reads_prompt_logits = self.strategy.reads_prompt_logits or self.settings.prompt_logprobs is not None
        self.reads_logits = warper.is_on_host and not (warper.is_plain_argmax and self.verifier.is_keyed)
        keeps_numbers = self.settings.keeps_scores or self.settings.keeps_logits
        is_drawn = warper.is_plain_draw and self.verifier.is_keyed and self.constraint is None and not keeps_numbers
        self.draw = KeyedDraw(self.randomness.seed, warper.temperature) if is_drawn else None

    @property
    def strategy_name(self) -> str:
        """The name of the strategy."""
        return self.strategy.name

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

    @property
    def shows_draws(self) -> bool:
        """True if feedback may contain draws.

        Under a rule that isn't keyed by position, a proposer that knew later noise would bias the text.
        """
        return self.verifier.is_keyed or self.settings.temperature == 0.0

    def for_drafter(self, vocab_size: int, retained: tuple[Retained, ...] = ()) -> Request:
        """The request as its drafter sees it.

        Args:
            retained: the strategy's state about the row's first tokens, from an earlier request.
        """
        tokens, warper = self.tokens, self.warper

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
            rng=self.randomness.stream(self.strategy.name),
            warp=warp,
            constraint=lambda: self.constraint,
            noise=noise if self.verifier.is_keyed and self.settings.temperature > 0.0 else None,
            reference=self.reference,
            num_reused=self.num_reused,
            retained=retained,
            inputs=self.inputs,
        )

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the end of the text; return how many were appended."""
        num_committed = 0
        for token in tokens:
            self.tokens.append(token)
            num_committed += 1
            self._end_after(token)
            if self.finish_reason is not None:
                break
        if not self.stats.accepted_lengths:
            self.stats.seconds_to_first_token = time.perf_counter() - self.began
        return num_committed

    def _end_after(self, token: int) -> None:
        """Set ``finish_reason`` if the text ends after this token, which is the last of ``tokens``."""
        settings, is_over = self.settings, token in self.eos_token_ids
        if self.decoder is not None:
            with Guard("the tokenizer", [self]):
                is_over |= self.decoder.push(token)  # True after a stop string
        if settings.stopping_criteria:
            with Guard("a stopping criterion", [self]):
                input_ids = torch.tensor([self.tokens])
                met = [bool(criterion(input_ids, None)) for criterion in settings.stopping_criteria]  # each may count
                is_over |= any(met)
        if self.constraint is not None:
            with Guard("the constraint", [self]):
                is_over |= self._completes_constraint(self.constraint, token)
        if self.finish_reason is not None:  # one of these has failed
            return
        if is_over:
            self.finish_reason = "stop"
        elif self.num_remaining == 0:
            self.finish_reason = "length"
        elif settings.max_time is not None and time.perf_counter() - self.began > settings.max_time:
            self.finish_reason = "time"

    def _completes_constraint(self, state: PathState, token: int) -> bool:
        """Advance the constraint's state; return True if no token may follow."""
        if not state.allows(token):
            raise PluginError(f"verifier {type(self.verifier).__name__} emitted {token}, which the constraint refuses")
        self.constraint = state.follow(token) or state  # an end of text is no part of the constrained text
        return self.constraint.is_complete

    def retained_state(self, start: int, stop: int) -> Retained | None:
        """The drafter's state about some positions, for later requests.

        None if its strategy reads no prompts, or if it hasn't received the signals at all of these positions.
        """
        drafter = self.drafter
        if drafter is None or not self.strategy.reads_prompts or stop > self.num_reported:
            return None
        with Guard(self.strategy.author, [self]):
            return drafter.retain(start, stop)
        return None

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
