"""Proposals: asking an engine for its requests' trees within a budget, and checking what a third party gives."""

from collections.abc import Sequence as ReadOnly

from specdec.decoding.plan import Strategy
from specdec.decoding.request_state import Sequence
from specdec.errors import PluginError, plural
from specdec.target import Target
from specdec.tree import Budget, DraftTree

MAX_NODES = 512  # a limit against runaway proposers; the largest published lookahead setting has 480
UNLIMITED = 1 << 20  # positions, for models that name no limit


def budget(target: Target, sequence: Sequence) -> Budget:
    """The size that a request's tree may have."""
    most_depth, most_positions = target.compiler.max_depth, target.shapes.max_positions
    return Budget(
        num_nodes=MAX_NODES,
        depth=min(
            UNLIMITED if most_depth is None else most_depth,
            (UNLIMITED if most_positions is None else most_positions) - len(sequence.tokens),
        ),
        num_tokens=sequence.num_remaining,
    )


def ask(strategy: Strategy, asking: ReadOnly[Sequence], budgets: ReadOnly[Budget]) -> ReadOnly[DraftTree | Exception]:
    """One proposal per request; an engine that fails as a whole fails each of them."""
    drafters = [sequence.drafter for sequence in asking if sequence.drafter is not None]
    assert len(drafters) == len(asking), "a request without a drafter has failed, and takes part in no step"
    try:
        proposals = list(strategy.engine.propose_many(drafters, budgets))
    except Exception as error:  # a third party's code
        return [error] * len(drafters)
    if len(proposals) != len(drafters):
        fault = f"proposer {strategy.name} gave {plural(len(proposals), 'tree')} for {plural(len(drafters), 'request')}"
        return [PluginError(fault)] * len(drafters)
    return proposals


def checked(proposal: DraftTree | Exception, sequence: Sequence, limits: Budget, vocab_size: int) -> DraftTree:
    """Return a proposal that keeps a proposer's laws; raises what is wrong with any other."""
    name, verifier = sequence.plan.strategy.name, sequence.plan.verifier
    if isinstance(proposal, Exception):
        raise proposal
    if not isinstance(proposal, DraftTree):
        raise PluginError(f"proposer {name} returned {proposal!r}, which is not a DraftTree")
    proposal.check(sequence.tokens[-1], vocab_size, limits, name)
    if verifier.reads_q and proposal.has_true_laws:
        proposal.check_draws(vocab_size, name)
    return proposal
