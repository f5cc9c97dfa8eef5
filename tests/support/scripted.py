"""A proposer that does what a test tells it, and writes down what is done to it."""

from collections.abc import Callable
from typing import Any

from specdec import Budget, Drafter, DraftTree, Engine, Feedback, Proposer, Request

Script = Callable[[Request, Budget], Any]


def root_alone(request: Request, budget: Budget) -> DraftTree:
    return DraftTree(request.root)


class Scripted(Proposer):
    """``script`` makes the trees; ``events`` collects ("start" | "stop", first prompt token); ``during`` may raise."""

    script: Any = root_alone
    events: Any = None
    during: Any = None  # (stage, request) -> None
    engine: Any = None  # start -> Engine

    def bind(self, host: object) -> Engine:
        return (self.engine or Engine)(self.start)

    def tell(self, stage: str, request: Request) -> None:
        if self.events is not None and stage in {"start", "stop"}:
            self.events.append((stage, request.tokens[0]))
        if self.during is not None:
            self.during(stage, request)

    def start(self, request: Request) -> Drafter:
        self.tell("start", request)
        return _Scripted(request, self)


class _Scripted(Drafter):
    def __init__(self, request: Request, config: Scripted) -> None:
        super().__init__(request)
        self._config = config

    def propose(self, budget: Budget) -> DraftTree:
        tree: DraftTree = self._config.script(self.request, budget)
        return tree

    def observe(self, feedback: Feedback) -> None:
        self._config.tell("observe", self.request)

    def stop(self) -> None:
        self._config.tell("stop", self.request)
