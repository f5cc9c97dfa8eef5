"""The drafters of a trained head over pairs: each request's pairs of hidden states and tokens, and its draft.

A pair needs the hidden states of a position and the token after it. So after each step the head can read the accepted
path with the bonus token, and its draft begins at the last pair. Keys and values of drafted tokens are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from specdec.errors import NumericsError
from specdec.heads.pair_cache import PairCache
from specdec.heads.strategies.candidates import Candidates, bin_of
from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source
from specdec.strategies.base import Drafter
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request, Retained
from specdec.strategies.signals import Answers, Hidden, Nodes, Signal
from specdec.tree import Budget, DraftTree

_DEEPEST = 2  # deeper candidates share the buckets of their probability
_MOST_PENDING = 256  # pairs whose hidden states are held until the next draft


class PairEngine(Protocol):
    """The part of an engine that its drafters use.

    Attributes:
        states: the hidden states that the head reads.
    """

    states: Hidden

    def acceptance_rates(self) -> AcceptanceRates:
        """Return a new request's acceptance rates."""

    def new_cache(self) -> PairCache:
        """Return an empty cache."""

    def store(self, drafter: "HeadDrafter") -> None:
        """Cache the keys and values of a request's pending pairs."""

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        """Draft for several requests."""


class HeadDrafter(Source):
    """One request: the head's keys and values of its text, and hidden states that the head hasn't read yet.

    Attributes:
        cache: keys and values of the pairs that were read.
        num_known: the number of positions, from the first, whose hidden states were received.
        pending: the hidden states, (n, layers * size) each, of the last of these positions, which aren't cached.
        last: the hidden states, (1, layers * size), of the last pair that was cached; None before the first.
        drafted: the candidates of the step under way; None without a draft.
        drawn: the draft of the step under way instead, if its candidates were drawn.
    """

    def __init__(self, request: Request, engine: PairEngine) -> None:
        super().__init__(request)
        self._engine, self._acceptance_rates = engine, engine.acceptance_rates()
        self.cache = engine.new_cache()
        self.pending: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None
        self.drafted: Candidates | None = None
        self.drawn: DraftTree | None = None
        self._fault: NumericsError | None = None
        self.num_known = request.num_reused
        if request.retained:
            keys, values = zip(*(each.state for each in request.retained), strict=True)
            self.cache.append(torch.cat(keys), torch.cat(values))
            self.cache.truncate(request.num_reused)
        self._is_whole = len(self.cache) == request.num_reused
        if not self._is_whole:
            self.cache.truncate(0)

    @property
    def can_draft(self) -> bool:
        """True if the hidden states of the whole text before the root are known."""
        is_current = self.num_known == len(self.request.tokens) - 1
        return is_current and self._fault is None and (bool(self.pending) or self.last is not None)

    def take(self, draft: Candidates) -> None:
        """Take the draft of a step."""
        if draft.is_finite:
            self.drafted = draft
        else:
            self.leave_out()

    def leave_out(self) -> None:
        """Draft nothing for this request from now on, since the head's probabilities are not finite."""
        self._fault = NumericsError("gave probabilities that are not finite")
        self.cache, self.pending, self._is_whole = self._engine.new_cache(), [], False
        self.notes = ("drafting goes on without the head: its probabilities are not finite",)

    def _receive(self, start: int, states: torch.Tensor) -> None:
        """Take the hidden states, (n, layers, size), of positions from ``start`` on."""
        if self._fault is not None or not len(states):
            return
        if start != self.num_known:  # the positions between are unknown: go on as if they weren't there
            self._engine.store(self)
            self._is_whole = False
        self.pending.append(states.flatten(1))
        self.num_known = start + len(states)
        is_prompt = self.num_known < len(self.request.tokens) - 1
        if is_prompt or sum(map(len, self.pending)) > _MOST_PENDING:
            self._engine.store(self)

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        states = signals[Nodes.PROMPT, self._engine.states].tensor()
        self._receive(num_tokens - len(states), states)

    def receive(self, feedback: Feedback) -> None:
        self.drafted = self.drawn = None
        states = feedback.signals[Nodes.PATH, self._engine.states].tensor()
        root = len(self.request.tokens) - len(feedback.tokens) - 1
        self._receive(root, states[: len(feedback.tokens)].clone())  # a view would hold all nodes of the pass

    def retain(self, start: int, stop: int) -> Retained | None:
        self._engine.store(self)
        if not self._is_whole or stop > len(self.cache):
            return None
        keys, values = self.cache.keys[start:stop].clone(), self.cache.values[start:stop].clone()
        return Retained((keys, values), keys.nbytes + values.nbytes)

    def propose(self, budget: Budget) -> DraftTree:
        proposal = self._engine.propose_many([self], [budget])[0]
        assert isinstance(proposal, DraftTree), "a head that fails raises its error"
        return proposal

    def tree(self, budget: Budget) -> DraftTree:
        """Return the draft of the step under way, the root alone if there is none."""
        root = self.request.root
        if self.drawn is not None:
            return self.drawn
        if self.drafted is None:
            return DraftTree(root)
        return self.drafted.tree(root, budget.num_nodes, self.request.eos_token_ids)

    def root(self) -> int | None:
        if self._fault is not None:
            raise self._fault
        return None if self.drafted is None else -1

    def follow(self, state: int, token: int) -> int | None:
        assert self.drafted is not None, "a state is of a draft"
        return next((node for node in self.drafted.children(state) if self.drafted.tokens[node] == token), None)

    def candidates(self, state: int) -> Sequence[Candidate]:
        drafted, rates = self.drafted, self._acceptance_rates
        assert drafted is not None, "a state is of a draft"
        depth, above = 1, state
        while above >= 0 and depth < _DEEPEST:
            depth, above = depth + 1, drafted.parents[above]
        is_sampled = self.request.noise is not None
        return [
            (drafted.tokens[node], rates[is_sampled, depth, bin_of(drafted.probability(node))])
            for node in drafted.children(state)
        ]


# Called before a pass with the probability, by drafter, of the path that it continues.
PaysByDrafter = Callable[[Mapping[HeadDrafter, float]], bool]


def own_drafters(drafters: Sequence[Drafter]) -> list[HeadDrafter]:
    own = [drafter for drafter in drafters if isinstance(drafter, HeadDrafter)]
    assert len(own) == len(drafters), "an engine is given the drafters that it started"
    return own
