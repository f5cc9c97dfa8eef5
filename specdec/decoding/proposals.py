"""Proposals: an engine's trees for its requests, within budgets and checked."""

from collections.abc import Sequence

from specdec.decoding.plan import Strategy
from specdec.decoding.request_state import RequestState
from specdec.errors import PluginError, plural
from specdec.target import Target
from specdec.tree import Budget, DraftTree

MAX_NODES = 512  # a limit for runaway proposers; the largest published lookahead setting has 480
UNLIMITED = 1 << 20  # positions of models without a limit


def budget(target: Target, request: RequestState) -> Budget:
    """The budget of a request's next tree."""
    most_depth, most_positions = target.compiler.max_depth, target.shapes.max_positions
    return Budget(
        num_nodes=MAX_NODES,
        depth=min(
            UNLIMITED if most_depth is None else most_depth,
            (UNLIMITED if most_positions is None else most_positions) - len(request.tokens),
        ),
        num_tokens=request.num_remaining,
    )


def propose_all(
    strategy: Strategy, requests: Sequence[RequestState], budgets: Sequence[Budget]
) -> Sequence[DraftTree | Exception]:
    """One proposal per request; if the engine raises, its error for each."""
    drafters = [request.drafter for request in requests if request.drafter is not None]
    assert len(drafters) == len(requests), "a request without a drafter has failed, and takes part in no step"
    try:
        proposals = list(strategy.engine.propose_many(drafters, budgets))
    except Exception as error:  # a third party's code
        return [error] * len(drafters)
    if len(proposals) != len(drafters):
        fault = f"proposer {strategy.name} gave {plural(len(proposals), 'tree')} for {plural(len(drafters), 'request')}"
        return [PluginError(fault)] * len(drafters)
    return proposals


def checked(proposal: DraftTree | Exception, request: RequestState, limits: Budget, vocab_size: int) -> DraftTree:
    """Return a proposal that keeps a proposer's laws.

    Raises:
        Exception: the proposer's own error, or a PluginError that names the broken law.
    """
    name, verifier = request.plan.strategy.name, request.plan.verifier
    if isinstance(proposal, Exception):
        raise proposal
    if not isinstance(proposal, DraftTree):
        raise PluginError(f"proposer {name} returned {proposal!r}, which isn't a DraftTree")
    proposal.check(request.tokens[-1], vocab_size, limits, name)
    if verifier.reads_q and proposal.has_true_q:
        proposal.check_draws(vocab_size, name)
    return proposal
