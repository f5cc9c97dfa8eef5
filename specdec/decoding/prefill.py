"""Prefill: a prompt is read in chunks at fixed positions, each of them a turn of a step."""

from collections.abc import Sequence

from specdec.backends.output import OutputRow
from specdec.decoding.request_state import RequestState
from specdec.decoding.signals import answers, wanted_of_prompt
from specdec.sampling.distributions import NodeDistributions
from specdec.strategies.base import Hidden
from specdec.target import Target
from specdec.tree import DraftTree, Role


def next_chunk(request: RequestState, target: Target) -> Sequence[int]:
    """The next tokens of the prompt to read without a draft; nothing if the request drafts in its next turn.

    What remains after whole chunks is read with the first draft, unless the strategy declares PROMPT signals.
    """
    if not request.is_prefilling:
        return ()
    assert request.row is not None, "a request in a step has a row"
    chunk = target.chunk_after(request.row, request.tokens)
    return chunk or (request.uncached_prefix if request.plan.strategy.about_prompts else ())


def tree_of_chunk(chunk: Sequence[int], request: RequestState) -> DraftTree:
    """A chunk as a tree: a chain of SUPPORT nodes, all of which are committed."""
    tree = DraftTree(chunk[0])
    tree.add_chain(0, chunk[1:], Role.SUPPORT)
    tree.wanted = wanted_of_prompt(len(chunk), request.plan.strategy.about_prompts)
    return tree


def keep_prompt_signals(request: RequestState, chunk: DraftTree, output: OutputRow) -> None:
    """Retain the answers to a request's PROMPT signals about a committed chunk, until its first feedback."""
    assert request.row is not None, "a request in a step has a row"
    start, nodes = request.row.length - len(chunk), range(len(chunk))
    committed = request.tokens[: start + 1]
    for signal in request.plan.strategy.about_prompts:
        is_hidden = isinstance(signal[1], Hidden)
        row = output.hidden_alone() if is_hidden else output
        target = NodeDistributions(chunk, row, committed, request.warper, request.randomness)
        found = answers(signal[1], nodes, target, request.plan.shows_draws)
        # Tokens and probabilities are computed now: the chunk's logits would take hundreds of times their memory.
        request.prompt_signals.setdefault(signal, []).append((start, found if is_hidden else dict(found)))
