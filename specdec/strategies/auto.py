"""What a generator drafts with when nothing is said: lookahead of a size that fits the device, and only while it pays.

Which size: the one whose tokens per step over c(T) is greatest, c(T) being what a pass over its nodes costs here.
How much of it: in each step the number of nodes that maximizes expected tokens over cost,

    (1 + sum over depths d of S(d)) / c(T),   S(d) = product over k <= d of a(k),

where a(k) is how often a draft's k-th token was right if those before it were (the product-limit estimate: Kaplan and
Meier 1958). Whether at all: out of an account. Each step of plain decoding's length pays in a small share of itself, a
draft takes what its pass costs more than a plain one and pays in the tokens that it brings, and nothing is drafted that
the account couldn't bear to lose whole; what isn't expected to pay is tried again when the account is full. So decoding
is never slower than plain decoding by more than that share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from specdec.costs import Costs
from specdec.strategies.base import Drafter, Engine, Feedback, Host, Nodes, Proposer, Request, What
from specdec.strategies.lookahead import LookaheadProposer
from specdec.tree import ROOT, Budget, DraftTree, Role

# N, W and G; nodes and tokens of a step on the demo's prompts (greedy, 128 tokens): they rank, and promise nothing.
_SIZES = (
    ((5, 15, 15), 73.4, 1.54),
    ((5, 10, 10), 49.9, 1.50),
    ((5, 7, 7), 35.6, 1.46),
    ((4, 5, 5), 19.3, 1.39),
    ((4, 3, 3), 12.0, 1.30),
    ((3, 3, 3), 8.0, 1.29),
    ((5, 0, 4), 4.6, 1.19),
    ((3, 0, 2), 2.4, 1.16),
)
_FIRST_DEPOSIT = 2.0  # plain steps: what a generator may lose before it knows better
_MOST_SAVED = 4.0  # so that text which is easily guessed doesn't pay for long stretches of text that isn't
_WORTH_IT = 1.05  # speed over plain decoding's; c(T) knows nothing of the host's own work
_MEMORY = 0.98  # by which what was seen counts less with each draft


class AutoProposer(Proposer):
    """Lookahead, with as large a window and as many guesses as pay here: none of them where no draft does."""

    loss: float = Field(0.01, ge=0.0, lt=1.0, description="share of plain decoding's time that drafts may lose")

    def wants(self) -> frozenset[tuple[Nodes, What]]:
        return LookaheadProposer().wants()

    def bind(self, host: Host) -> Engine:
        if not host.is_keyed:  # there the text depends on the drafts, which then mustn't depend on a clock
            return lookahead(_SIZES[-1][0]).bind(host)
        costs = host.costs()
        return _AutoEngine(lookahead(best_size(costs)).bind(host), Account(costs, self.loss))

    def start(self, request: Request) -> Drafter:
        raise TypeError("an automatic choice's requests are started by its engine")


def best_size(costs: Costs) -> tuple[int, int, int]:
    """(N, W, G) of the greatest predicted speed."""
    size, _, _ = max(_SIZES, key=lambda measured: measured[2] / costs.at(measured[1]))
    return size


def lookahead(size: tuple[int, int, int]) -> LookaheadProposer:
    N, W, G = size  # noqa: N806 - the paper's letters
    return LookaheadProposer(N=N, W=W, G=G)


@dataclass(slots=True)
class Account:
    """What drafts have brought and cost, in plain steps, and how often they were right at each depth."""

    costs: Costs
    loss: float
    balance: float = _FIRST_DEPOSIT
    _hits: list[float] = field(default_factory=list)
    _tries: list[float] = field(default_factory=list)
    _prices: dict[tuple[int, int], float] = field(default_factory=dict)

    def rightness(self, depth: int) -> float:
        """sum of S(d) up to a depth: the tokens that a draft so deep is expected to bring."""
        total, survival = 0.0, 1.0
        for place in range(depth):
            if place < len(self._tries):  # with one hit more than was seen, so that what is untried gets tried
                survival *= (self._hits[place] + 1) / (self._tries[place] + 1)
            total += survival
        return total

    def price(self, num_rows: int, width: int) -> float:
        """What a pass of so many nodes for each row costs beyond a plain one, in plain ones."""
        if (num_rows, width) not in self._prices:
            self._prices[num_rows, width] = self.costs.at(num_rows * width) / self.costs.at(num_rows) - 1
        return self._prices[num_rows, width]

    def is_open(self, num_rows: int) -> bool:
        """Whether a step may draft at all; it pays in its share."""
        self.balance = min(_MOST_SAVED, self.balance + self.loss)
        return self.price(num_rows, 2) <= self.balance

    def spend(self, trees: Sequence[DraftTree]) -> int:
        """How many nodes of each tree are to be fed, the root included; it is paid for."""
        widest = max(map(len, trees))
        # What was made to be fed whole (its probes come last) is; else any number of first nodes is a tree.
        is_whole = any(tree.nodes_with(Role.PROBE) for tree in trees)
        prices = {
            width: price
            for width in ([widest] if is_whole else range(2, widest + 1))
            if (price := self.price(len(trees), width)) <= self.balance
        }
        gains = {width: sum(self.rightness(depth_of(tree, width)) for tree in trees) / len(trees) for width in prices}
        speeds = {width: (1 + gains[width]) / (1 + prices[width]) for width in prices}
        best = max(speeds, key=speeds.__getitem__, default=1)
        if best > 1 and speeds[best] < _WORTH_IT and self.balance < _MOST_SAVED:
            return 1
        self.balance -= prices.get(best, 0.0)
        return best

    def earn(self, num_rows: int, depth: int, num_accepted: int) -> None:
        """Note what came of one of so many rows' drafts."""
        self.balance = min(_MOST_SAVED, self.balance + num_accepted / num_rows)
        missing = depth - len(self._tries)
        self._tries += [0.0] * missing
        self._hits += [0.0] * missing
        for place in range(min(depth, num_accepted + 1)):
            self._tries[place] = _MEMORY * self._tries[place] + 1
            self._hits[place] = _MEMORY * self._hits[place] + (place < num_accepted)


class _AutoEngine(Engine):
    def __init__(self, inner: Engine, account: Account) -> None:
        self._inner = inner
        self._account = account

    def start(self, request: Request) -> Drafter:
        return _PayingDrafter(request, self._inner.start(request), self._account)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        paying = [drafter for drafter in drafters if isinstance(drafter, _PayingDrafter)]
        assert len(paying) == len(drafters), "drafters were started here"
        if not self._account.is_open(len(paying)):  # then drafting's own work is saved as well
            return [DraftTree(drafter.request.root) for drafter in drafters]
        proposals = self._inner.propose_many([drafter.inner for drafter in paying], budgets)
        width = self._account.spend([tree for tree in proposals if isinstance(tree, DraftTree)] or [DraftTree(ROOT)])
        for drafter in paying:
            drafter.num_rows = len(paying)
        return [first_nodes(tree, width) if isinstance(tree, DraftTree) else tree for tree in proposals]

    def close(self) -> None:
        self._inner.close()


class _PayingDrafter(Drafter):
    """A drafter whose drafts are accounted for."""

    def __init__(self, request: Request, inner: Drafter, account: Account) -> None:
        super().__init__(request)
        self.inner = inner
        self.num_rows = 1  # in the pass under way
        self._account = account

    def propose(self, budget: Budget) -> DraftTree:
        if not self._account.is_open(1):
            return DraftTree(self.request.root)
        tree = self.inner.propose(budget)
        return first_nodes(tree, self._account.spend([tree]))

    def observe(self, feedback: Feedback) -> None:
        depth = depth_of(feedback.tree, len(feedback.tree))
        if depth:
            self._account.earn(self.num_rows, depth, len(feedback.path) - 1)
        self.inner.observe(feedback)

    def stop(self) -> None:
        self.inner.stop()


def depth_of(tree: DraftTree, width: int) -> int:
    """How deep the candidates among a tree's first nodes reach."""
    return max((tree.depths[node] for node in tree.nodes_with(Role.CANDIDATE) if node < width), default=0)


def first_nodes(tree: DraftTree, width: int) -> DraftTree:
    """A tree of a tree's first nodes, the root included."""
    if width >= len(tree):
        return tree
    cut = DraftTree(tree.tokens[ROOT])
    for node in range(1, width):
        cut.add(tree.parents[node], tree.tokens[node], tree.roles[node])
    return cut
