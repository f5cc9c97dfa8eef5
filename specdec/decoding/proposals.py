"""Proposals: an engine's trees for its requests, within budgets and checked."""

from collections.abc import Sequence
from dataclasses import replace

from specdec.constraints.path_state import PathState
from specdec.decoding.plan import Strategy
from specdec.decoding.request_state import RequestState
from specdec.errors import PluginError, plural
from specdec.target import Target
from specdec.tree import ROOT, Budget, DraftTree, Role

MAX_NODES = 512  # a limit for runaway proposers; the largest published lookahead setting has 480


def budget(target: Target, request: RequestState, max_nodes: int = MAX_NODES) -> Budget:
    """The budget of a request's next tree, with a node at least."""
    num_left, most_depth = target.shapes.context_length - len(request.tokens), target.compiler.max_depth
    return Budget(
        num_nodes=max(1, max_nodes),
        depth=num_left if most_depth is None else min(most_depth, num_left),
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


def checked(
    proposal: DraftTree | Exception, request: RequestState, limits: Budget, vocab_size: int, max_nodes: int = MAX_NODES
) -> DraftTree:
    """Return a proposal that keeps a proposer's laws, or its first ``max_nodes`` nodes.

    More nodes than that break no law, or a request could fail because of others, on which this number depends.

    Raises:
        Exception: the proposer's own error, or a PluginError that names the broken law.
    """
    name, verifier = request.plan.strategy.name, request.plan.verifier
    if isinstance(proposal, Exception):
        raise proposal
    if not isinstance(proposal, DraftTree):
        raise PluginError(f"proposer {name} returned {proposal!r}, which isn't a DraftTree")
    most = limits if max_nodes == MAX_NODES else replace(limits, num_nodes=MAX_NODES)
    proposal.check(request.tokens[-1], vocab_size, most, name)
    if verifier.reads_q and proposal.has_true_q:
        proposal.check_draws(vocab_size, name)
    return proposal if len(proposal) <= max_nodes + 1 else proposal.subtree(range(1, max_nodes + 1))


def allowed_part(tree: DraftTree, constraint: PathState | None) -> DraftTree:
    """Return a tree without the candidates that a request's constraint refuses: no pass can accept them.

    Refused nodes that another node needs stay, and so do those of other roles and sampled ones, which carry their q.
    """
    if constraint is None or tree.has_sampled_draws:
        return tree
    states = dict[int, PathState | None]({ROOT: constraint})
    kept, refused = set[int](), set[int]()
    for node in range(1, len(tree)):
        if tree.roles[node] == Role.CANDIDATE and not _is_allowed(node, tree, states):
            refused.add(node)
    for node in range(len(tree) - 1, ROOT, -1):
        if node not in refused or node in kept:
            kept |= {node, tree.parents[node]} - {ROOT}
    return tree if len(kept) == len(tree) - 1 else tree.subtree(sorted(kept))


def _is_allowed(node: int, tree: DraftTree, states: dict[int, PathState | None]) -> bool:
    """Return True if the constraint allows a node's path; add the state after it to those of the nodes before."""
    above, token = states.get(tree.parents[node]), tree.tokens[node]
    try:
        is_allowed = above is not None and above.allows(token)
        states[node] = above.follow(token) if above is not None and is_allowed else None
    except Exception:  # a limit, met on a path that may never be written
        return False
    return is_allowed
