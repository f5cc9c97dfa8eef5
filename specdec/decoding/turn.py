"""The requests of one pass, and each request's turn in it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, Literal, ParamSpec, TypeVar

import torch

from specdec.decoding.request_state import RequestState
from specdec.decoding.strategy import Strategy
from specdec.record import Outcome
from specdec.sampling.distributions import NO_TOKEN, NodeDistributions
from specdec.target import Target
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier

MAX_NODES = 512  # a limit for runaway proposers; the largest published lookahead setting has 480

P = ParamSpec("P")
R = TypeVar("R")


class RequestTurn:
    """One request's part of a pass: a chunk of its prompt, or a draft tree after what is left of the prompt.

    A chunk if a whole one is left. Turns of both kinds may share a pass.

    Attributes:
        row: the request's row.
        start: the row's length before the pass.
        prefix: the tokens from there to the root of ``tree``, which the pass commits.
        tree: what is fed after ``prefix``, and verified; of a chunk the root alone, which is the chunk's last token.
        num_read: tokens of the prompt that the pass reads: ``prefix``, and a chunk's last token.
        outcome: filled by the stages of the step.
        max_nodes: of the draft.
        proposed: the drafter's tree, from which ``tree`` was made.
        distributions: the model's at the nodes of ``tree``, set by ``verify``; None for a chunk.
        verdict: the acceptance rule's; None for a chunk, or if the rule failed.
    """

    def __init__(self, request: RequestState, target: Target) -> None:
        assert request.row is not None, "a request in a step has a row"
        self.request, self.row, self.start, tokens = request, request.row, request.row.length, request.tokens
        chunk = target.chunk_after(self.row, tokens) if request.is_prefilling else ()
        self.outcome = Outcome(request, is_chunk=bool(chunk))
        fed = chunk or tokens[self.start :]
        self.prefix, self.num_read = fed[:-1], len(fed) - (not chunk)
        self.tree = self.proposed = DraftTree(fed[-1])
        self.max_nodes = MAX_NODES
        self.distributions: NodeDistributions | None = None
        self.verdict: Verdict | None = None

    def commit(self, flags_ties: bool) -> None:
        """Append the verdict's tokens to the request's, and set the outcome with the scores that decided them."""
        request, target, verdict, outcome = self.request, self.distributions, self.verdict, self.outcome
        if target is None or verdict is None or request.finish_reason is not None:
            return
        has_bonus = verdict.tokens[-1] != NO_TOKEN
        tokens = verdict.tokens if has_bonus else verdict.tokens[:-1]
        num_committed = request.commit(tokens) if tokens else 0
        # One node per token: the last token is the next root, and the old root is node 0.
        nodes = verdict.path[:num_committed]
        outcome.path, outcome.tokens = nodes or (ROOT,), tokens[:num_committed]
        if flags_ties and request.shows_draws:  # rules that draw by distributions have no runner-up
            request.best_two += [target.best_two(node, request.randomness.gumbel) for node in nodes]
        if request.settings.keeps_scores:
            outcome.scores = tuple(None if one is None else _copied(one) for one in map(target.scores, nodes))
        if request.settings.keeps_logits:
            outcome.logits = tuple(_copied(target.outputs.logits(node)) for node in nodes)
        if not has_bonus:
            self._fail_at(verdict.path[-1], target)

    def _fail_at(self, node: int, target: NodeDistributions) -> None:
        """Fail the request if its text goes on at a node that has an error in place of a distribution."""
        fault = target.faults.get(node)
        is_certain = node == ROOT or target.outputs.is_finite(node)  # otherwise it is the next root, and is fed alone
        if fault is not None and is_certain and self.request.finish_reason is None:
            error = type(fault)(f"step {self.request.stats.steps + 1}: {fault}")
            error.__cause__ = fault.__cause__
            self.request.fail(error)


def _copied(values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", torch.float32, copy=True)


@dataclass(slots=True)
class Batch:
    """The requests of one pass.

    Attributes:
        kind: as in the pass's record.
        fallback: the verifier for drafts without a true q under a rule that reads q; it doesn't read q itself.
        flags_ties: retain the two best scores of each token, since a pass of another shape might swap them.
        drops_drafts: feed roots alone where the text allows it: requests outside the pass wait for it.
        seconds: by phase.
        drafting: the turns that aren't chunks, by strategy.
    """

    target: Target
    turns: Sequence[RequestTurn]
    kind: Literal["chunk", "prompt", "step"]
    fallback: Verifier
    flags_ties: bool = False
    drops_drafts: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    drafting: dict[Strategy, list[RequestTurn]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for turn in self.turns:
            if not turn.outcome.is_chunk:
                self.drafting.setdefault(turn.request.strategy, []).append(turn)

    def timed(self, phase: str, stage: Callable[Concatenate["Batch", P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a stage of the step, and add its time to the seconds of a phase."""
        began = time.perf_counter()
        try:
            return stage(self, *args, **kwargs)
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
