"""Prefill: a prompt is read in chunks at fixed positions, each of them a turn of a step."""

from collections.abc import Sequence

from specdec.backends.output import OutputRow
from specdec.decoding.request_state import RequestState
from specdec.decoding.signals import answers, reads_logits_of_prompts
from specdec.sampling.distributions import NodeDistributions
from specdec.strategies.signals import Answers, Signal
from specdec.target import Target
from specdec.tree import ROOT, DraftTree, Role


def next_chunk(request: RequestState, target: Target) -> Sequence[int]:
    """The next tokens of the prompt to read without a draft; nothing if the request drafts in its next turn.

    What remains after whole chunks is read with the first draft.
    """
    if not request.is_prefilling:
        return ()
    assert request.row is not None, "a request in a step has a row"
    return target.chunk_after(request.row, request.tokens)


def tree_of_chunk(chunk: Sequence[int], request: RequestState) -> DraftTree:
    """A part of a prompt as a tree: a chain of SUPPORT nodes, all of which are committed."""
    tree = DraftTree(chunk[0])
    tree.add_chain(ROOT, chunk[1:], Role.SUPPORT)
    tree.wanted = range(len(chunk)) if reads_logits_of_prompts(request.plan) else (ROOT,)
    return tree


def prompt_signals(request: RequestState, chunk: DraftTree, start: int, output: OutputRow) -> dict[Signal, Answers]:
    """The answers to a request's PROMPT signals about a part of the prompt that was read, by position.

    Args:
        start: the part's first position.
        output: of the part's nodes.
    """
    target = NodeDistributions(chunk, output, request.tokens[: start + 1], request.warper, request.randomness)
    place = {start + node: node for node in range(len(chunk))}
    return {
        signal: answers(signal[1], range(len(chunk)), target, request.plan.shows_draws).at(place)
        for signal in request.plan.strategy.about_prompts
    }
