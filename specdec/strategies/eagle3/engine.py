"""EAGLE's engine and drafters: each request's pairs of hidden states and tokens, and drafts for all requests at once.

A pair needs the hidden states of a position and the token after it. So after each step the head can read the accepted
path with the bonus token, and its draft begins at the last pair. Keys and values of drafted tokens are dropped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from specdec.errors import NumericsError
from specdec.heads.base import HeadRunner
from specdec.heads.drafting import Choose, PairCache, TreeGrowth, most_probable
from specdec.heads.reading import read
from specdec.strategies.base import (
    Answers,
    Drafter,
    Engine,
    Feedback,
    Hidden,
    Nodes,
    Pays,
    Request,
    Retained,
    Signal,
)
from specdec.strategies.eagle3.candidates import Candidates, DraftNoise, bin_of, fetched, prior
from specdec.strategies.merging.acceptance_rates import AcceptanceRates
from specdec.strategies.merging.source import Candidate, Source
from specdec.tree import Budget, DraftTree

_WIDTH_IN_MERGES = 1  # nodes fed per level: the head's most probable path
_DEEPEST = 2  # deeper candidates share the buckets of their probability
_MOST_PAIRS = 8  # in a draft's first pass; earlier ones are cached without it, in a pass of their own
_MOST_PENDING = 256  # pairs whose hidden states are held until the next draft


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The options of ``Eagle3Proposer`` that shape its trees."""

    top_k: int
    depth: int
    num_nodes: int
    min_probability: float


class Eagle3Engine(Engine):
    """The head, which drafts for all requests of a batch level by level.

    Args:
        runner: runs the head.
        layers: the target's layers whose hidden states the head reads, as ``Hidden`` numbers them.
        learns: requests share acceptance rates in merges; False if the text depends on the drafts.
        name: the strategy's, as the source of its candidates.
    """

    def __init__(
        self,
        options: TreeOptions,
        runner: HeadRunner,
        layers: Sequence[int],
        learns: bool = True,
        name: str = "eagle3",
    ) -> None:
        self.head, self._runner, self._options, self._learns = runner.head, runner, options, learns
        self._name, least = name, options.min_probability
        self._least = math.log(least) if least else -math.inf  # of a path that is continued
        self.states = Hidden(tuple(layers))
        self._target_ids = self.head.target_ids
        self.forget()

    def forget(self) -> None:
        self._acceptance_rates = AcceptanceRates(self._name, prior)

    def acceptance_rates(self) -> AcceptanceRates:
        """Return a new request's acceptance rates."""
        return self._acceptance_rates if self._learns else AcceptanceRates(self._name, prior)

    def new_cache(self) -> PairCache:
        """Return an empty cache, which grows in the sizes that the runner prefers."""
        return PairCache(self.head, self._runner.num_slots)

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROMPT, self.states), (Nodes.PATH, self.states)})

    def start(self, request: Request) -> Drafter:
        return Eagle3Drafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        own = own_drafters(drafters)
        self._draft(own, budgets, self._options.top_k, self._options.num_nodes)
        return [drafter.tree(budget) for drafter, budget in zip(own, budgets, strict=True)]

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget], pays: Pays) -> None:
        most = self._options.depth * self._options.top_k
        self._draft(own_drafters(drafters), budgets, _WIDTH_IN_MERGES, most, pays)

    @torch.inference_mode()
    def store(self, drafter: "Eagle3Drafter") -> None:
        """Cache the keys and values of a request's pending pairs; nothing is drafted after the last of them."""
        if drafter.pending:
            states, tokens = self._take_pending(drafter)
            self._append(drafter, states, tokens)

    def _append(self, drafter: "Eagle3Drafter", states: torch.Tensor, tokens: Sequence[int]) -> None:
        read(self._runner, drafter.cache, states, tokens)

    def _take_pending(self, drafter: "Eagle3Drafter") -> tuple[torch.Tensor, Sequence[int]]:
        """Return the pending pairs of a request: states (n, layers * size), and the tokens after them."""
        stop, pending = drafter.num_known, drafter.pending
        states = (pending[0] if len(pending) == 1 else torch.cat(pending)).to(self._target_ids.device)
        drafter.pending, drafter.last = [], states[-1:].clone()
        return states, drafter.request.tokens[stop - len(states) + 1 : stop + 1]

    def _take_unread(self, drafter: "Eagle3Drafter") -> tuple[torch.Tensor, Sequence[int]]:
        """Return the pairs that a draft begins with: the pending ones, or the last pair once more."""
        if not drafter.pending:
            assert drafter.last is not None, "a request that can draft has a last pair"
            drafter.cache.truncate(len(drafter.cache) - 1)
            return drafter.last, drafter.request.tokens[-1:]
        states, tokens = self._take_pending(drafter)
        if len(tokens) > _MOST_PAIRS:
            self._append(drafter, states[:-1], tokens[:-1])
            return states[-1:], tokens[-1:]
        return states, tokens

    @torch.inference_mode()
    def _draft(
        self,
        drafters: Sequence["Eagle3Drafter"],
        budgets: Sequence[Budget],
        width: int,
        num_nodes: int,
        pays: Pays = lambda _: True,
    ) -> None:
        """Draft for each request whose hidden states before the root are all known.

        Args:
            width: nodes fed per level.
            num_nodes: of each draft.
            pays: as in ``prepare_drafts``.
        """
        depths = self._depths(drafters, budgets)
        if not depths or not pays([float(drafter in depths) for drafter in drafters]):
            return
        trees = self._trees(
            depths, width, num_nodes, lambda reached: pays([reached.get(drafter, 0.0) for drafter in drafters])
        )
        for (drafter, depth), drafted in zip(depths.items(), trees, strict=True):
            drafted.depth, drafted.least = depth, self._least
            drafter.take(drafted)

    def _depths(self, drafters: Sequence["Eagle3Drafter"], budgets: Sequence[Budget]) -> dict["Eagle3Drafter", int]:
        """Begin a step; return the longest path of each request that the head can draft for."""
        depths = dict[Eagle3Drafter, int]()
        for drafter, budget in zip(drafters, budgets, strict=True):
            drafter.drafted = drafter.drawn = None
            depth = min(self._options.depth, budget.depth, budget.num_tokens - 1)
            if depth > 0 and budget.num_nodes > 0 and drafter.can_draft:
                depths[drafter] = depth
        return depths

    def _trees(
        self,
        depths: Mapping["Eagle3Drafter", int],
        width: int,
        num_nodes: int,
        pays: Callable[[Mapping["Eagle3Drafter", float]], bool],
    ) -> Sequence[Candidates]:
        """Run the head's passes, and return the candidates of each request in ``depths``, its longest path.

        Args:
            pays: called before each pass but the first, with the probabilities of the paths that it continues.
        """
        choose = most_probable(self._num_children)
        return fetched(self._grown(depths, width, pays, choose).best(num_nodes))

    @property
    def _num_children(self) -> int:
        """The number of candidates after a node."""
        return min(self._options.top_k, self._runner.num_tokens)

    def _grown(
        self,
        depths: Mapping["Eagle3Drafter", int],
        width: int,
        pays: Callable[[Mapping["Eagle3Drafter", float]], bool],
        choose: Choose,
    ) -> TreeGrowth:
        """Run the head's passes; the arguments are those of ``_trees`` and ``TreeGrowth``."""
        ready = list(depths)
        noise = DraftNoise([drafter.request for drafter in ready], self._target_ids)
        states, tokens = zip(*map(self._take_unread, ready), strict=True)
        caches = [drafter.cache for drafter in ready]
        width = min(width, self._num_children)
        growth = TreeGrowth(self._runner, caches, states, tokens, width, noise.at, choose)
        for level in range(1, max(depths.values())):
            reached = {
                drafter: math.exp(log_prob)
                for drafter, log_prob in zip(ready, growth.next_log_probs.tolist(), strict=True)
                if log_prob >= self._least and depths[drafter] > level
            }
            if not any(reached.values()) or not pays(reached):
                break
            growth.feed()
        return growth


def own_drafters(drafters: Sequence[Drafter]) -> list["Eagle3Drafter"]:
    own = [drafter for drafter in drafters if isinstance(drafter, Eagle3Drafter)]
    assert len(own) == len(drafters), "an engine is given the drafters that it started"
    return own


class Eagle3Drafter(Source):
    """One request: the head's keys and values of its text, and hidden states that the head hasn't read yet.

    Attributes:
        cache: keys and values of the pairs that were read.
        num_known: the number of positions, from the first, whose hidden states were received.
        pending: the hidden states, (n, layers * size) each, of the last of these positions, which aren't cached.
        last: the hidden states, (1, layers * size), of the last pair that was cached; None before the first.
        drafted: the candidates of the step under way; None without a draft.
        drawn: the draft of the step under way instead, if its candidates were drawn.
    """

    def __init__(self, request: Request, engine: Eagle3Engine) -> None:
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
        self._receive(root, states[: len(feedback.tokens)])

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
