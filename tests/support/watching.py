"""A strategy that reads prompts, as heads do, and checks that it is shown each position of its text once."""

from collections.abc import Mapping
from typing import Any

import torch

from specdec import Budget, Drafter, DraftTree, Engine, Feedback, Nodes, Proposer, Request
from specdec.strategies.request import Retained
from specdec.strategies.signals import Answers, Hidden, Signal

STATES = Hidden((0,))  # the toy's: the layer, the token and its position
BYTES = 100  # that the state of a position is said to take


class Watching(Proposer):
    """Counts what it was shown: ``seen`` collects each request's positions and tokens, with the text it ended with."""

    seen: Any
    tag: int = 0

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROMPT, STATES), (Nodes.PATH, STATES)})

    def bind(self, host: object) -> Engine:
        return Engine(lambda request: WatchingDrafter(request, self))


class WatchingDrafter(Drafter):
    def __init__(self, request: Request, config: Watching) -> None:
        super().__init__(request)
        self.config = config
        states = [each.state for each in request.retained]
        assert all(tag == config.tag for tag, _ in states), "the state of another strategy"
        known = [each for _, shown in states for each in shown][: request.num_reused]
        assert len(known) == request.num_reused
        # As a head's keys do, the state at a position depends on the token after it.
        assert [after for *_, after in known] == request.tokens[1 : 1 + len(known)]
        self.shown = [(position, token) for position, token, _ in known]

    def show(self, states: torch.Tensor) -> None:
        self.shown += [(int(position), int(token)) for _, token, position in states[:, 0].tolist()]

    def read(self, num_tokens: int, budget: Budget, signals: Mapping[Signal, Answers]) -> None:
        self.show(signals[Nodes.PROMPT, STATES].tensor())

    def propose(self, budget: Budget) -> DraftTree:
        tree = DraftTree(self.request.root)
        tree.add_chain(0, self.request.random_tokens(3)[: budget.depth])
        return tree

    def receive(self, feedback: Feedback) -> None:
        self.show(feedback.signals[Nodes.PATH, STATES].tensor()[: len(feedback.path)])

    def retain(self, start: int, stop: int) -> Retained | None:
        after = self.request.tokens[start + 1 : stop + 1]
        shown = [(*each, token) for each, token in zip(self.shown[start:stop], after, strict=True)]
        return Retained((self.config.tag, shown), BYTES * (stop - start))

    def stop(self) -> None:
        self.config.seen.append((self.shown, list(self.request.tokens), self.request.num_reused))


def assert_each_once(seen: list[Any]) -> None:
    for shown, text, _ in seen:
        assert shown == list(enumerate(text))[:-1]


class Counting(Watching):
    """The same for models whose hidden states don't say which position they are about."""

    def bind(self, host: object) -> Engine:
        return Engine(lambda request: _Counting(request, self))


class _Counting(WatchingDrafter):
    def show(self, states: torch.Tensor) -> None:
        start = len(self.shown)
        self.shown += [(start + index, self.request.tokens[start + index]) for index in range(len(states))]
