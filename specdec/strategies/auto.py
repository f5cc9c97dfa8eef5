"""The default strategy: lookahead of a size that fits the device, and only while it pays.

The size is the one whose tokens per step over c(T) is greatest, c(T) being the cost of a pass over its nodes here.

In each step those nodes of a draft are fed (a window whole or not at all, guesses in any number) that maximize

    (1 + sum over candidates v of P(v)) / c(T),   P(v) = b(rank of its branch) x product over 2 <= k <= depth of a(k),

where b is how often the first, second, … branch below the root was right, and a(k) how often a branch's k-th token was
if those before it were (the product-limit estimate: Kaplan and Meier 1958).

An account decides whether to draft at all. Each step pays in a small share of itself. A draft takes out what its pass
costs more than a plain one, and pays in the tokens that it brings. Nothing is drafted that the account couldn't bear to
lose whole; a draft that isn't expected to pay is tried for a few steps when the account is full. So drafts never lose
more than that share of plain decoding's time and the first deposit, as far as prices are right (``prices.py``).

Under rules where the text depends on what is drafted, nothing is drafted: the text mustn't depend on a clock.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from specdec.costs import Costs
from specdec.decoding.record import Outcome, StepRecord
from specdec.strategies.autoregressive import AutoregressiveProposer
from specdec.strategies.base import BatchDrafter, Drafter, Engine, Feedback, Host, Proposer, Request, Signal
from specdec.strategies.lookahead import LookaheadProposer
from specdec.strategies.prices import Prices
from specdec.tree import ROOT, Budget, DraftTree, Role

# N, W and G; nodes and tokens of a step of SmolLM2-135M-Instruct on chat prompts of 12 categories (greedy, 96 tokens):
# they rank, and promise nothing.
_SIZES = (
    ((5, 15, 15), 71.3, 1.84),
    ((5, 10, 10), 48.9, 1.82),
    ((5, 7, 7), 35.6, 1.79),
    ((4, 5, 5), 19.8, 1.65),
    ((4, 3, 3), 12.6, 1.52),
    ((3, 3, 3), 8.4, 1.50),
    ((3, 2, 2), 5.8, 1.40),
    ((5, 0, 4), 5.6, 1.41),
    ((3, 0, 2), 2.7, 1.31),
)
_FIRST_DEPOSIT = 0.5  # plain steps: what a generator may lose before it knows better
_TRIAL = 6  # steps, so that a window left alone fills up again
_MOST_SAVED = 4.0  # so that text which is easily guessed doesn't pay for long stretches of text that isn't
_WORTH_IT = 1.05  # speed over plain decoding's
_MOST_PATIENCE = 8  # steps
_MEMORY = 0.98  # by which what was seen counts less with each draft


class AutoProposer(Proposer):
    """Lookahead, with as large a window and as many guesses as pay here: none of them where no draft does."""

    learns_across_requests: ClassVar[bool] = True

    loss: float = Field(0.01, ge=0.0, lt=1.0, description="share of plain decoding's time that drafts may lose")

    def wants(self) -> frozenset[Signal]:
        return LookaheadProposer().wants()

    def bind(self, host: Host) -> Engine:
        if not host.is_keyed:
            return AutoregressiveProposer().bind(host)
        costs = host.costs()
        # Not bound to the host, which would warn the user of a choice that wasn't theirs.
        inner = Engine(lookahead(best_size(costs, host.takes_trees)).start)
        return _AutoEngine(inner, Account(Prices(costs), self.loss), host.takes_trees)

    def start(self, request: Request) -> Drafter:
        raise TypeError("an automatic choice's requests are started by its engine")


def best_size(costs: Costs, takes_trees: bool = True) -> tuple[int, int, int]:
    """(N, W, G) of the greatest predicted speed; where there are only chains, of those that have no window."""
    possible = [measured for measured in _SIZES if takes_trees or measured[0][1] == 0]
    size, _, _ = max(possible, key=lambda measured: measured[2] / costs.at(measured[1]))
    return size


def lookahead(size: tuple[int, int, int]) -> LookaheadProposer:
    N, W, G = size  # noqa: N806 - the paper's letters
    return LookaheadProposer(N=N, W=W, G=G)


@dataclass(slots=True)
class Rate:
    """A recent rate of success; one success more is counted than was seen, so that what is untried gets tried."""

    hits: float = 0.0
    tries: float = 0.0

    def note(self, is_right: bool) -> None:
        self.hits, self.tries = _MEMORY * self.hits + is_right, _MEMORY * self.tries + 1

    @property
    def value(self) -> float:
        return (self.hits + 1) / (self.tries + 1)


@dataclass(slots=True)
class Account:
    """The balance of what drafts bring and cost, in plain steps, and how often they are right, by rank and by depth."""

    prices: Prices
    loss: float
    balance: float = _FIRST_DEPOSIT
    _ranks: defaultdict[int, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _depths: defaultdict[int, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _least: int = 2  # the smallest part of the last draft that can be fed
    _num_trials: int = 0  # steps left of a trial
    _num_declined: int = 0  # drafts in a row
    _patience: int = 0  # steps before the next draft is written: to write one and not to feed it costs, too

    def expected(self, tree: DraftTree) -> list[float]:
        """Entry i: the tokens that the tree's first i nodes are expected to bring."""
        rank_of = {node: rank for rank, node in enumerate(branches(tree))}
        candidates = set(tree.nodes_with(Role.CANDIDATE))
        reached, totals = [1.0], [0.0, 0.0]
        for node in range(1, len(tree)):
            if node not in candidates:
                chance = 0.0
            elif node in rank_of:
                chance = self._ranks[rank_of[node]].value
            else:
                chance = reached[tree.parents[node]] * self._depths[tree.depths[node]].value
            reached.append(chance)
            totals.append(totals[-1] + chance)
        return totals

    def deposit(self) -> None:
        """A step pays in its share, and one less is waited for."""
        self.balance = min(_MOST_SAVED, self.balance + self.loss)
        self._patience = max(0, self._patience - 1)

    def can_draft(self, num_rows: int) -> bool:
        """Return True if a draft is to be written.

        None is while drafting pauses, while its cost isn't known, or where the account can't bear even the smallest.
        """
        if self._patience or self.prices.needs_plain(num_rows):
            return False
        return self.prices.at(num_rows, self._least) <= self.balance

    def choose(self, trees: Sequence[DraftTree]) -> int:
        """Return how many nodes of each tree are to be fed, the root included, and pay for them."""
        num_rows, widest = len(trees), max(map(len, trees))
        # A window goes whole or not at all; of what comes behind it any first nodes are a tree.
        self._least = max(2, *(1 + max(tree.nodes_with(Role.PROBE), default=0) for tree in trees))
        prices = {width: self.prices.at(num_rows, width) for width in range(self._least, widest + 1)}
        expected = [self.expected(tree) for tree in trees]
        speeds = {
            width: (1 + sum(totals[min(width, len(totals) - 1)] for totals in expected) / num_rows) / (1 + price)
            for width, price in prices.items()
            if price <= self.balance
        }
        best = max(speeds, key=speeds.__getitem__, default=1)
        if best > 1 and speeds[best] < _WORTH_IT and not self._num_trials:
            if self.balance < _MOST_SAVED:
                self._num_declined += 1
                self._patience = min(2**self._num_declined, _MOST_PATIENCE)
                return 1
            self._num_trials = _TRIAL
        self._num_declined, self._num_trials = 0, max(0, self._num_trials - 1)
        self.balance -= prices.get(best, 0.0)
        return best

    def earn(self, num_accepted: float) -> None:
        """Pay in the tokens per row that drafts brought."""
        self.balance = min(_MOST_SAVED, self.balance + num_accepted)

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Note which of a tree's candidates were right, by rank and by depth."""
        for rank, node in enumerate(branches(tree)):
            self._ranks[rank].note(node in path[1:2])
        for depth, node in enumerate(path[1:], 2):
            if tree.draws.get(node):
                self._depths[depth].note(len(path) > depth)


def branches(tree: DraftTree) -> list[int]:
    """The candidates below the root, in the order in which they were drawn."""
    return list(dict.fromkeys(draw.child for draw in tree.draws.get(ROOT, ())))


class _AutoEngine(Engine):
    def __init__(self, inner: Engine, account: Account, takes_trees: bool = True) -> None:
        self._inner = inner
        self._account = account
        self._takes_trees = takes_trees

    def start(self, request: Request) -> Drafter:
        return _PayingDrafter(request, self._inner.start(request), self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        self._account.deposit()
        if not self._account.can_draft(len(drafters)):  # drafting's own work is saved as well
            return [DraftTree(drafter.request.root) for drafter in drafters]
        paying = [drafter for drafter in drafters if isinstance(drafter, _PayingDrafter)]
        proposals = self._inner.propose_many([drafter.inner for drafter in paying], budgets)
        drafts: list[DraftTree | Exception] = []
        for drafter, proposal in zip(paying, proposals, strict=True):
            drafter.whole = proposal
            if isinstance(proposal, DraftTree) and not self._takes_trees:
                proposal = proposal.longest_chain()  # noqa: PLW2901 - the drafter keeps its own
            drafts.append(proposal)
        trees = [draft for draft in drafts if isinstance(draft, DraftTree)]
        width = self._account.choose(trees) if trees else 1
        return [
            draft.part(range(width)) if isinstance(draft, DraftTree) and width < len(draft) else draft
            for draft in drafts
        ]

    def learn_from(self, feedback: Feedback) -> None:
        """Note which candidates of a draft were right."""
        self._account.learn(feedback.tree, feedback.path)

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        drafted = [outcome for outcome in outcomes if outcome.tree is not None and len(outcome.tree) > 1]
        if drafted:
            self._account.earn(sum(max(0, len(outcome.tokens) - 1) for outcome in outcomes) / len(outcomes))
        if record.kind == "step":
            widths = [len(outcome.tree) for outcome in outcomes if outcome.tree is not None]
            self._account.prices.note(len(outcomes), max(widths, default=1), record.total_seconds)

    def close(self) -> None:
        self._inner.close()


class _PayingDrafter(BatchDrafter):
    """A drafter whose drafts are accounted for; ``whole`` is its last draft before it was cut."""

    def __init__(self, request: Request, inner: Drafter, engine: _AutoEngine) -> None:
        super().__init__(request, engine)
        self.inner = inner
        self.whole: DraftTree | Exception | None = None
        self._engine = engine

    def read(self, num_tokens: int, budget: Budget) -> None:
        self.inner.read(num_tokens, budget)

    def observe(self, feedback: Feedback) -> None:
        # What plain steps brought it reads in the text, when it next drafts.
        if len(feedback.tree) > 1 and isinstance(self.whole, DraftTree):
            self._engine.learn_from(feedback)
            self.inner.observe(feedback.about(self.whole))

    def stop(self) -> None:
        self.inner.stop()
