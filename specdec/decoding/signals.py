"""Signals: what passes report to drafters about trees and prompts, and the log-probabilities of prompts to callers."""

from collections.abc import Sequence
from functools import partial

import torch

from specdec.backends.output import OutputRow
from specdec.decoding.turn import RequestTurn
from specdec.record import PromptLogprobs
from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.logprobs import token_logprobs
from specdec.strategies.feedback import Feedback
from specdec.strategies.signals import Answers, Hidden, HiddenAnswers, Nodes, Signal, TopK, TopLogits, What
from specdec.tree import ROOT, DraftTree, Role

_BLOCK = 64  # tokens: the logits of a whole chunk in float64 would be a copy of hundreds of megabytes


def feedback_of(turn: RequestTurn, target: NodeDistributions) -> Feedback:
    """Return the feedback on a turn's verified tree for its drafter."""
    request, tree, path = turn.request, turn.tree, turn.outcome.path
    signals = {
        (nodes, what): answers(what, select(nodes, tree, path), target, request.shows_draws)
        for nodes, what in request.strategy.about_trees
    }
    return Feedback(tree, path, turn.outcome.tokens, signals)


def prompt_signals(turn: RequestTurn, output: OutputRow) -> dict[Signal, Answers]:
    """Return the answers to a strategy's PROMPT signals about the part of the prompt that a turn has read, by position.

    Args:
        output: of the part's nodes, by their distance from ``turn.start``.
    """
    request, start = turn.request, turn.start
    if not request.strategy.reads_prompts:
        return {}
    read = DraftTree(request.tokens[start])
    read.add_chain(ROOT, request.tokens[start + 1 : start + turn.num_read], Role.SUPPORT)
    target = NodeDistributions(read, output, request.tokens[: start + 1], request.warper, request.randomness)
    place = {start + node: node for node in range(len(read))}
    return {
        signal: answers(signal[1], range(len(read)), target, request.shows_draws).at(place)
        for signal in request.strategy.about_prompts
    }


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


def prompt_logprobs(turn: RequestTurn, output: OutputRow) -> PromptLogprobs | None:
    """Return the log-probabilities of the tokens that follow those of the prompt that a turn has read.

    Args:
        output: of the nodes that were read, by their distance from ``turn.start``.

    Returns:
        None if the settings ask for none.
    """
    request, start, stop = turn.request, turn.start, turn.start + turn.num_read
    num_top = request.settings.prompt_logprobs
    if num_top is None:
        return None
    blocks = [
        token_logprobs(
            torch.stack([output.logits(position - start) for position in range(first, min(first + _BLOCK, stop))]),
            request.tokens[first + 1 : min(first + _BLOCK, stop) + 1],
            num_top,
        )
        for first in range(start, stop, _BLOCK)
    ]
    logprobs, top_ids, top_logprobs = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return PromptLogprobs(start + 1, logprobs, top_ids, top_logprobs)
