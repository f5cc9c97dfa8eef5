"""Drafting: the trees of one strategy's turns, within budgets and checked."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from specdec.constraints.path_state import PathState
from specdec.decoding.request_state import RequestState
from specdec.decoding.strategy import Strategy
from specdec.decoding.turn import MAX_NODES, Batch, RequestTurn
from specdec.errors import Guard, PluginError, plural
from specdec.target import Target
from specdec.tree import ROOT, Budget, DraftTree, Role


def budget(target: Target, request: RequestState, max_nodes: int = MAX_NODES) -> Budget:
    """The budget of a request's next tree, with a node at least."""
    shapes, most_depth = target.shapes, target.compiler.max_depth
    num_left = shapes.context_length - len(request.tokens)
    return Budget(
        num_nodes=max(1, max_nodes),
        depth=num_left if most_depth is None else min(most_depth, num_left),
        num_tokens=request.num_remaining,
    )


def draft(batch: Batch, strategy: Strategy, turns: Sequence[RequestTurn]) -> None:
    """Set the trees of one strategy's turns, all at once; a root alone if the strategy fails."""
    if not batch.target.shapes.takes_drafts:
        return
    budgets = [budget(batch.target, turn.request, turn.max_nodes) for turn in turns]
    proposals = list[DraftTree | Exception]()
    with Guard(strategy.author, [turn.request for turn in turns]):
        drafters = [turn.request.drafter for turn in turns if turn.request.drafter is not None]
        assert len(drafters) == len(turns), "a request without a drafter has failed, and takes part in no step"
        proposals = list(strategy.engine.propose_many(drafters, budgets))
        if len(proposals) != len(turns):
            proposed = plural(len(proposals), "tree")
            raise PluginError(f"{strategy.author} gave {proposed} for {plural(len(turns), 'request')}")
    for turn, limits, proposal in zip(turns, budgets, proposals, strict=False):  # none if the engine has failed
        with Guard(strategy.author, [turn.request]):
            proposed_tree = _checked(proposal, turn, limits, batch.target.shapes.vocab_size)
            turn.tree = _fed_part(proposed_tree, turn.request, batch)
            turn.proposed = proposed_tree


def _checked(proposal: DraftTree | Exception, turn: RequestTurn, limits: Budget, vocab_size: int) -> DraftTree:
    """Return a proposal that keeps a proposer's laws, or its first ``max_nodes`` nodes.

    More nodes than that break no law, or a request could fail because of others, on which this number depends.

    Raises:
        Exception: the proposer's own error, or a PluginError that names the broken law.
    """
    request, max_nodes = turn.request, turn.max_nodes
    name = request.strategy.name
    if isinstance(proposal, Exception):
        raise proposal
    if not isinstance(proposal, DraftTree):
        raise PluginError(f"proposer {name} returned {proposal!r}, which isn't a DraftTree")
    most = limits if max_nodes == MAX_NODES else replace(limits, num_nodes=MAX_NODES)
    proposal.check(request.tokens[-1], vocab_size, most, name)
    if request.verifier.reads_q and proposal.has_true_q:
        proposal.check_draws(vocab_size, name)
    return proposal if len(proposal) <= max_nodes + 1 else proposal.subtree(range(1, max_nodes + 1))


def _fed_part(proposed: DraftTree, request: RequestState, batch: Batch) -> DraftTree:
    """Return the part of a checked tree that is fed, with the nodes whose logits the verifier and signals read."""
    tree, roles = proposed, request.strategy.read_roles
    if request.constraint is not None:
        tree = allowed_part(tree, request.constraint)
    if request.inputs is not None:
        tree = without_tokens(tree, request.inputs.placeholders)
    if not batch.target.shapes.takes_trees:
        tree = tree.longest_chain()
    if batch.drops_drafts and request.verifier.is_keyed:
        tree = proposed.subtree([])
    tree.wanted = range(len(tree)) if roles is None else [ROOT, *tree.nodes_with(roles)]
    return tree


def allowed_part(tree: DraftTree, constraint: PathState) -> DraftTree:
    """Return a tree without the candidates that a request's constraint refuses: no pass can accept them.

    Refused nodes that another node needs stay, and so do those of other roles and sampled ones, which carry their q.
    """
    if tree.has_sampled_draws:
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


def without_tokens(tree: DraftTree, tokens: Collection[int]) -> DraftTree:
    """Return a tree without some tokens and what follows them."""
    kept = [ROOT]
    for node in range(1, len(tree)):
        if tree.tokens[node] not in tokens and tree.parents[node] in kept:
            kept.append(node)
    return tree if len(kept) == len(tree) else tree.subtree(kept[1:])


def _is_allowed(node: int, tree: DraftTree, states: dict[int, PathState | None]) -> bool:
    """Return True if the constraint allows a node's path; add the state after it to those of the nodes before."""
    above, token = states.get(tree.parents[node]), tree.tokens[node]
    try:
        is_allowed = above is not None and above.allows(token)
        states[node] = above.follow(token) if above is not None and is_allowed else None
    except Exception:  # a limit, met on a path that may never be written
        return False
    return is_allowed
