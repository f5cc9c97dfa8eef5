"""Signals: the answers to each pair of nodes and quantity that a proposer has declared."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from specdec.sampling.distributions import NodeDistributions
from specdec.strategies.base import Answers, Hidden, Nodes, Signal, TopK, TopLogits, What
from specdec.tree import ROOT, DraftTree, Role


def wanted(tree: DraftTree, signals: Iterable[Signal]) -> list[int]:
    """The nodes whose logits a step reads, ascending: the verifier's, and those of declared signals."""
    declared = {nodes for nodes, what in signals if not isinstance(what, Hidden)}
    if Nodes.ALL in declared:
        return list(range(len(tree)))
    roles = Role.CANDIDATE | Role.PROBE if Nodes.PROBE in declared else Role.CANDIDATE
    return [ROOT, *tree.nodes_with(roles)]


def wanted_of_prompt(num_tokens: int, signals: Iterable[Signal]) -> Sequence[int]:
    """The nodes of a chunk of a prompt whose logits are read."""
    is_declared = any(nodes is Nodes.PROMPT and not isinstance(what, Hidden) for nodes, what in signals)
    return range(num_tokens) if is_declared else (ROOT,)


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
) -> Mapping[int, Any]:
    """The answers at some nodes, computed when first read.

    Nodes without a possible token or without finite logits are left out.
    """
    match what:
        case TopK(k):
            return Answers(partial(target.top_probs, nodes, k))
        case TopLogits(k):
            return Answers(partial(target.top_logits, nodes, k))
        case Hidden(layers):
            return Answers(partial(target.hidden, nodes, layers))
        case _:
            return Answers(partial(target.predictions, nodes, what is What.DRAW and shows_draws))
