"""The reading of a prompt: chunk by chunk at fixed positions, each an ordinary pass, before a request's first step."""

from collections.abc import Sequence as ReadOnly

from specdec.decoding.contexts import Contexts
from specdec.decoding.guard import guard
from specdec.decoding.plan import layers_of
from specdec.decoding.proposals import budget
from specdec.decoding.request_state import Sequence
from specdec.decoding.signals import answers, wanted_of_prompt
from specdec.decoding.step import Batch, leave
from specdec.record import Outcome, StepRecord
from specdec.sampling.target import SequenceTarget
from specdec.strategies.base import Hidden
from specdec.target import Target
from specdec.tree import DraftTree, Role


def begin(sequence: Sequence, target: Target, contexts: Contexts) -> None:
    """Open a row for a request, or take over its context's, and begin its drafting."""
    with guard(target.author, [sequence]):
        if sequence.context is not None or contexts.prefixes is not None:
            contexts.check_model()
        if sequence.context is not None and may_go_on(sequence):
            sequence.row = contexts.row_for(sequence.context, sequence.tokens)
        if sequence.row is None:
            sequence.row = target.open(sequence.capacity)
            if contexts.prefixes is not None and may_go_on(sequence):
                contexts.prefixes.fill(sequence.row, sequence.tokens)
        sequence.row.capacity = max(sequence.row.capacity, sequence.capacity)
        sequence.stats.num_reused = sequence.row.length
    if sequence.is_finished:
        return
    with guard(f"proposer {sequence.plan.strategy.name}", [sequence]):
        sequence.drafter = sequence.plan.strategy.engine.start(sequence.request(target.shapes.vocab_size))


def may_go_on(sequence: Sequence) -> bool:
    """False where the text depends on drafts, and these on signals about the whole prompt."""
    return sequence.plan.verifier.is_keyed or not sequence.plan.strategy.about_prompts


def next_chunk(sequence: Sequence, target: Target) -> ReadOnly[int]:
    """Return the next tokens to read before the first step.

    What remains after whole chunks is forwarded with the first draft, unless the strategy declares PROMPT signals.
    """
    assert sequence.row is not None, "it has begun"
    chunk = target.chunk_behind(sequence.row, sequence.tokens)
    return chunk or (sequence.trunk if sequence.plan.strategy.about_prompts else ())


def read(batch: Batch, tokens: ReadOnly[int]) -> StepRecord:
    """One pass over tokens of the prompt of the batch's only request."""
    target, (sequence,) = batch.target, batch.sequences
    with guard(target.author, batch.sequences), batch.clock.phase("forward"):
        assert sequence.row is not None, "it has begun"
        start, told = sequence.row.length, sequence.plan.strategy.about_prompts
        chunk = DraftTree(tokens[0])
        nodes = [0, *chunk.add_chain(0, tokens[1:], Role.SUPPORT)]
        chunk.wanted = wanted_of_prompt(len(tokens), told)
        planned = target.compile({sequence.row: chunk}, hidden=sorted(layers_of(told)))
        rows = target.forward(planned)
        target.keep(planned, {sequence.row: nodes})
        if told:
            committed = sequence.tokens[: start + 1]
            for signal in told:
                row = rows[sequence.row].hidden_alone() if isinstance(signal[1], Hidden) else rows[sequence.row]
                seen = SequenceTarget(chunk, row, committed, sequence.warper, sequence.randomness)
                found = answers(signal[1], nodes, seen, sequence.plan.shows_draws)
                if not isinstance(signal[1], Hidden):
                    found = dict(found)  # tokens and probabilities; a chunk's logits would be hundreds of times as much
                sequence.prompt_signals.setdefault(signal, []).append((start, found))
    if sequence.drafter is not None and not sequence.is_finished:
        with guard(f"proposer {sequence.plan.strategy.name}", [sequence]), batch.clock.phase("propose"):
            sequence.drafter.read(start + len(tokens), budget(target, sequence))
    if sequence.is_finished:
        leave([sequence], target, batch.contexts)
    outcome = Outcome(sequence, finish_reason=sequence.finish_reason, error=sequence.error)
    record = StepRecord("chunk", (outcome,), batch.clock.seconds, len(tokens), num_positions=start + len(tokens))
    sequence.stats.note(record, outcome)
    return record
