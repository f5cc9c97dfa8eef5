"""Lookahead decoding: Fu, Bailis, Stoica and Zhang 2024, arXiv 2402.02057, Algorithm 2.

Two branches share one forward pass. The *lookahead branch* runs Jacobi iterations on a window of W positions and keeps
the last N-1 iterates of each, so every column of the window is an n-gram that the model itself predicted. The
*verification branch* tries the n-grams collected so far that begin with the current token.

The window as a tree (column j = 0 … W-1, level l = 0 … N-2; cell (0, 0) is the root):

    root ── L0[1] ── L0[2] ── …            the spine: level 0, the oldest iterates
     │        │        │
    L1[0]   L1[1]    L1[2]                 below each spine node its column, newer with every level
     │        │        │
     …        …        …
    L(N-2)  L(N-2)   L(N-2)                predictions at the last level become the new level
"""

import warnings
from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from specdec.strategies.base import Drafter, Engine, Proposer, Tunable
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Nodes, Signal, What
from specdec.tree import ROOT, Budget, DraftTree, Role


class LookaheadProposer(Proposer):
    """Drafts n-grams collected from a Jacobi window, as branches of a tree.

    The defaults gave the most tokens per step when measured.

    >>> from specdec.testing import first_drafts
    >>> first_drafts(LookaheadProposer(N=3, W=0, G=2), prompt=[5, 6, 7, 5, 8, 9, 5])  # no window: n-grams of the prompt
    [DraftTree(tokens=[5, 8, 9, 6, 7], parents=[-1, 0, 1, 0, 3])]
    >>> for tree in first_drafts(LookaheadProposer(N=3, W=2, G=0), prompt=[0], num_steps=2):
    ...     print(tree)  # the window alone: column 0 below the root, column 1 below the spine node
    DraftTree(tokens=[0, 0, 0], parents=[-1, 0, 1])
    DraftTree(tokens=[1, 2, 0, 3], parents=[-1, 0, 0, 2])
    """

    tunable: ClassVar[Tunable] = {"N": (3, 4, 5, 6, 7), "W": (3, 5, 7, 10, 15), "G": (3, 5, 7, 15)}

    N: int = Field(default=5, ge=2, description="n-gram size, the current token included")
    W: int = Field(default=15, ge=0, description="window width: columns, each of which gives one n-gram per step")
    G: int = Field(default=15, ge=-1, description="n-grams retained per first token (-1: no limit)")
    pool_from_prompt: bool = Field(
        default=True, description="also collect n-grams of the prompt and the committed text"
    )
    verify_window: bool = Field(default=True, description="also verify column 0 of the window")

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROBE, What.ARGMAX)} if self.W else ())

    def bind(self, host: Host) -> Engine:
        least, most = max(1, self.W * (self.N - 1)), self.N  # nodes, the root among them; tokens
        if host.takes_trees and least > most and (cost := host.costs().relative_at(least)) >= most:
            warnings.warn(
                f"lookahead with N={self.N}, W={self.W} forwards at least {least} nodes per step. Here such a pass "
                f"takes {cost:.1f} times as long as a plain one and yields at most {most} tokens, so it is always "
                "slower than plain decoding: use a smaller W, or proposer='auto'",
                stacklevel=4,  # the caller of Generator
            )
        return super().bind(host)

    def start(self, request: Request) -> Drafter:
        return _LookaheadDrafter(request, self)


class _LookaheadDrafter(Drafter):
    def __init__(self, request: Request, config: LookaheadProposer) -> None:
        super().__init__(request)
        self._config = config
        self._pool = NgramPool(config.G)
        self._num_collected = 0  # committed tokens whose n-grams are in the pool
        # levels[l][j] is cell (l, j); cell (0, 0) is replaced by the root.
        self._levels = [request.random_tokens(config.W) for _ in range(config.N - 1)]
        self._num_shifts = 0
        self._probes: list[int] = []  # the last level's nodes in the latest tree, by column

    def propose(self, budget: Budget) -> DraftTree:
        self._collect_committed()  # the prompt, and tokens of steps without feedback
        tree = DraftTree(self.request.root)
        self._probes = self._add_window(tree, budget)
        depth = max(0, min(budget.depth, budget.num_tokens - 1))
        for continuation in self._pool.lookup(self.request.root):
            guess = self.request.until_eos(continuation[:depth])
            if len(tree) + len(guess) > budget.num_nodes + 1:
                break
            tree.add_chain(ROOT, guess)
        return tree

    def _add_window(self, tree: DraftTree, budget: Budget) -> list[int]:
        """Add the spine and the columns that fit the budget; return the last level's nodes."""
        last = self._config.N - 2
        width = min(self._config.W, budget.depth - last + 1, budget.num_nodes // (last + 1))
        spine, probes = ROOT, []
        for column in range(width):
            if column > 0:
                spine = tree.add(spine, self._levels[0][column], Role.SUPPORT if last else Role.PROBE)
            node = spine
            for level in range(1, last + 1):
                role = Role.PROBE if level == last else Role.SUPPORT
                if column == 0 and self._config.verify_window:
                    role |= Role.CANDIDATE
                node = tree.add(node, self._levels[level][column], role)
            probes.append(node)
        return probes

    def observe(self, feedback: Feedback) -> None:
        self._collect_committed()
        # The first emitted token is the prediction at the root, where N = 2 has its column 0.
        known = {**feedback.predictions, ROOT: feedback.tokens[0]}
        predictions = [known.get(node) for node in self._probes]
        if any(token is not None for token in predictions):  # none where the model takes chains only
            self._turn_window(feedback.tree.tokens[ROOT], predictions)

    def _turn_window(self, old_root: int, predictions: list[int | None]) -> None:
        """Harvest one n-gram per column, then make each level the older one and the predictions the newest."""
        base = [old_root, *self._levels[0][1:]]
        if self._num_shifts >= self._config.N - 2:  # before that, columns hold random tokens, not iterates
            for column, prediction in enumerate(predictions):
                if prediction is not None:
                    upper = (level[column] for level in self._levels[1:])
                    self._pool.add(base[column], (*upper, prediction))
        missing = [None] * (self._config.W - len(predictions))
        self._levels = [*self._levels[1:], self._filled([*predictions, *missing])]
        self._num_shifts += 1

    def _filled(self, tokens: list[int | None]) -> list[int]:
        """Return a level in which gaps and end-of-text ids are replaced by tokens of the history."""
        unwanted = {None, *self.request.eos_token_ids}
        filler = iter(self.request.random_tokens(sum(token in unwanted for token in tokens)))
        return [next(filler) if token is None or token in unwanted else token for token in tokens]

    def _collect_committed(self) -> None:
        """Collect the n-grams completed by the tokens committed since the last call."""
        tokens = self.request.tokens
        if self._config.pool_from_prompt and len(tokens) > self._num_collected:
            fresh = tokens[max(0, self._num_collected - self._config.N + 1) :]
            self._pool.add_text(list(fresh), self._config.N)
            self._num_collected = len(tokens)


class NgramPool:
    """For each token, the latest n-grams that begin with it.

    Holds at most ``capacity`` continuations per key and evicts the least recently added (-1: no limit).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, key: int, continuation: tuple[int, ...]) -> None:
        """Add a continuation as the most recent of its key."""
        if self._capacity == 0:
            return
        known = self._continuations.setdefault(key, {})
        known.pop(continuation, None)
        known[continuation] = None
        if len(known) > self._capacity > 0:
            del known[next(iter(known))]

    def add_text(self, tokens: list[int], length: int) -> None:
        """Add every n-gram of ``length`` tokens of a text; its first token is the key."""
        for start in range(len(tokens) - length + 1):
            self.add(tokens[start], tuple(tokens[start + 1 : start + length]))

    def lookup(self, key: int) -> Iterable[tuple[int, ...]]:
        """Return the continuations of a key, the most recent first."""
        return reversed(self._continuations.get(key, {}))
