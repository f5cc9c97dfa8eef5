"""Medusa's engine and drafters: one pass of all heads for all requests at once, and trees of their predictions.

The heads read the hidden state at the last accepted token alone, so nothing is cached, and nothing is lost where a
request begins with cached keys and values. After a step that accepted tokens up to position i and drew x_{i+1}, head k
predicts x_{i+2+k}: the token at depth k + 1 of the next tree. All paths of a depth share that head's list.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from specdec.errors import NumericsError
from specdec.heads.medusa import MedusaRunner
from specdec.heads.strategies.candidates import DraftNoise, bin_of, prior
from specdec.heads.strategies.levels import Levels
from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source
from specdec.strategies.base import Drafter, Engine, Pays
from specdec.strategies.feedback import Feedback
from specdec.strategies.request import Request
from specdec.strategies.signals import Hidden, Nodes, Signal
from specdec.tree import Budget, DraftTree


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """The options of ``MedusaProposer`` that shape its trees."""

    num_nodes: int
    min_probability: float


class MedusaEngine(Engine):
    """The heads, which draft for all requests of a batch in one pass.

    Args:
        runner: runs the heads.
        layer: the target's last, as ``Hidden`` numbers it.
        learns: requests share acceptance rates in merges; False if the text depends on the drafts.
    """

    def __init__(self, options: MedusaOptions, runner: MedusaRunner, layer: int, learns: bool = True) -> None:
        self.options, self._runner, self._learns = options, runner, learns
        self.state = Hidden((layer,))
        self.forget()

    def forget(self) -> None:
        self._acceptance_rates = AcceptanceRates("medusa", prior_of_path)

    def acceptance_rates(self) -> AcceptanceRates:
        """Return a new request's acceptance rates."""
        return self._acceptance_rates if self._learns else AcceptanceRates("medusa", prior_of_path)

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.LAST, self.state)})

    def start(self, request: Request) -> Drafter:
        return MedusaDrafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        own = _own(drafters)
        self._draft(own, budgets)
        return [drafter.tree(budget) for drafter, budget in zip(own, budgets, strict=True)]

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget], pays: Pays) -> None:
        self._draft(_own(drafters), budgets, pays)

    def _draft(
        self, drafters: Sequence["MedusaDrafter"], budgets: Sequence[Budget], pays: Pays = lambda _: True
    ) -> None:
        """Let the heads predict for each request whose hidden state is known; ``pays`` as in ``prepare_drafts``."""
        ready = list["MedusaDrafter"]()
        for drafter, budget in zip(drafters, budgets, strict=True):
            drafter.drafted = None
            if drafter.can_draft and _depth_of(budget) > 0 and budget.num_nodes > 0:
                ready.append(drafter)
        if not ready or not pays([float(drafter in ready) for drafter in drafters]):
            return
        states = torch.cat([drafter.last_state for drafter in ready]).to(self._runner.device, self._runner.dtype)
        weights = self._runner.weights
        noise = DraftNoise([drafter.request for drafter in ready], weights.target_ids).of_next(weights.num_heads)
        tokens, log_probs = self._runner.run(states, noise)
        for drafter, *levels in zip(ready, tokens.tolist(), log_probs.tolist(), strict=True):
            drafted = Levels(*levels)
            if drafted.is_finite:
                drafter.drafted = drafted
            else:
                drafter.leave_out()


def _own(drafters: Sequence[Drafter]) -> list["MedusaDrafter"]:
    own = [drafter for drafter in drafters if isinstance(drafter, MedusaDrafter)]
    assert len(own) == len(drafters), "an engine is given the drafters that it started"
    return own


def _depth_of(budget: Budget) -> int:
    return min(budget.depth, budget.num_tokens - 1)


class MedusaDrafter(Source):
    """One request. A state of the source is the number of tokens on the path, and whether the heads predicted them.

    Attributes:
        last_state: the hidden state, (1, size), at the last accepted token; of no rows before the first step.
        drafted: the predictions of the step under way; None without a draft.
    """

    def __init__(self, request: Request, engine: MedusaEngine) -> None:
        super().__init__(request)
        self._engine, self._acceptance_rates = engine, engine.acceptance_rates()
        self.last_state = torch.zeros(0)
        self.drafted: Levels | None = None
        self._fault: NumericsError | None = None

    @property
    def can_draft(self) -> bool:
        """True if the hidden state at the last accepted token is known."""
        return self._fault is None and len(self.last_state) > 0

    def leave_out(self) -> None:
        """Draft nothing for this request from now on, since the heads' probabilities are not finite."""
        self._fault = NumericsError("gave probabilities that are not finite")
        self.notes = ("drafting goes on without the heads: their probabilities are not finite",)

    def receive(self, feedback: Feedback) -> None:
        self.drafted = None
        # A view would hold all nodes of the pass.
        self.last_state = feedback.signals[Nodes.LAST, self._engine.state].tensor().flatten(1).clone()

    def propose(self, budget: Budget) -> DraftTree:
        proposal = self._engine.propose_many([self], [budget])[0]
        assert isinstance(proposal, DraftTree), "heads that fail raise their error"
        return proposal

    def tree(self, budget: Budget) -> DraftTree:
        """Return the draft of the step under way, the root alone if there is none."""
        root, options = self.request.root, self._engine.options
        if self.drafted is None:
            return DraftTree(root)
        least = math.log(options.min_probability) if options.min_probability else -math.inf
        num_nodes = min(options.num_nodes, budget.num_nodes)
        stops = self.request.eos_token_ids
        return self.drafted.candidates(num_nodes, _depth_of(budget), least, stops).tree(root, num_nodes, stops)

    def root(self) -> tuple[int, bool] | None:
        if self._fault is not None:
            raise self._fault
        return None if self.drafted is None else (0, True)

    def follow(self, state: tuple[int, bool], token: int) -> tuple[int, bool] | None:
        assert self.drafted is not None, "a state is of a draft"
        level, was_predicted = state
        if level + 1 >= len(self.drafted.tokens):
            return None
        return level + 1, was_predicted and token in self.drafted.tokens[level]

    def candidates(self, state: tuple[int, bool]) -> Sequence[Candidate]:
        drafted, rates = self.drafted, self._acceptance_rates
        assert drafted is not None, "a state is of a draft"
        level, was_predicted = state
        is_sampled = self.request.noise is not None
        found = zip(drafted.tokens[level], drafted.log_probs[level], strict=True)
        return [
            (token, rates[is_sampled, level, bin_of(math.exp(log_prob)), was_predicted]) for token, log_prob in found
        ]


def prior_of_path(bucket: Hashable) -> float:
    """Return the acceptance rate that a bucket begins with: less after a path that the heads didn't predict."""
    assert isinstance(bucket, tuple), "buckets are (is_sampled, depth, bin of the probability, path was predicted)"
    return prior(bucket) if bucket[3] else prior(bucket) / 2
