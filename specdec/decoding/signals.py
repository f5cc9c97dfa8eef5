"""Signals: the answers to each pair of nodes and quantity that a proposer has declared."""

from collections.abc import Iterable, Sequence
from functools import partial

from specdec.decoding.plan import RequestPlan
from specdec.decoding.request_state import RequestState
from specdec.sampling.distributions import NodeDistributions
from specdec.strategies.feedback import Feedback
from specdec.strategies.signals import Answers, Hidden, HiddenAnswers, Nodes, Signal, TopK, TopLogits, What
from specdec.tree import ROOT, DraftTree, Role
from specdec.verifiers.base import Verdict


def wanted(tree: DraftTree, signals: Iterable[Signal]) -> list[int]:
    """The nodes whose logits a step reads, ascending: the verifier's, and those of declared signals."""
    declared = {nodes for nodes, what in signals if not isinstance(what, Hidden)}
    if Nodes.ALL in declared:
        return list(range(len(tree)))
    roles = Role.CANDIDATE | Role.PROBE if Nodes.PROBE in declared else Role.CANDIDATE
    return [ROOT, *tree.nodes_with(roles)]


def reads_logits_of_prompts(plan: RequestPlan) -> bool:
    """Return True if the settings, or any signal of the strategy, need the logits at a prompt's tokens."""
    signals = plan.strategy.about_prompts
    return plan.settings.prompt_logprobs is not None or any(not isinstance(what, Hidden) for _, what in signals)


def select(nodes: Nodes, tree: DraftTree, path: Sequence[int]) -> Sequence[int]:
    """The nodes of a verified tree that a declaration names; none for PROMPT, whose nodes are in no tree."""
    match nodes:
        case Nodes.LAST:
            return path[-1:]
        case Nodes.PATH:
            return path
        case Nodes.ALL:
            return range(len(tree))
        case Nodes.CANDIDATE:
            return tree.nodes_with(Role.CANDIDATE)
        case Nodes.PROBE:
            return tree.nodes_with(Role.PROBE)
        case Nodes.PROMPT:
            return ()


def answers(
    what: What | TopK | TopLogits | Hidden, nodes: Sequence[int], target: NodeDistributions, shows_draws: bool
) -> Answers:
    """The answers at some nodes, computed when first read.

    Nodes without a possible token or without finite logits are left out.
    """
    match what:
        case TopK(k):
            return Answers(partial(target.outputs.top_probs, nodes, k))
        case TopLogits(k):
            return Answers(partial(target.outputs.top_logits, nodes, k))
        case Hidden(layers):
            return HiddenAnswers(nodes, partial(target.outputs.hidden, nodes, layers))
        case _:
            return Answers(partial(target.predictions, nodes, what is What.DRAW and shows_draws))


def feedback_of(request: RequestState, tree: DraftTree, kept: Verdict, target: NodeDistributions) -> Feedback:
    """Return the feedback on a verified tree for its drafter; ``kept`` is the committed part of the verdict."""
    signals = {
        (nodes, what): answers(what, select(nodes, tree, kept.path), target, request.plan.shows_draws)
        for nodes, what in request.plan.strategy.about_trees
    }
    return Feedback(tree, kept.path, kept.tokens, signals)
