"""The step: propose, compile, forward, verify, commit, observe."""

from specdec.decoding.drafting import budget, draft
from specdec.decoding.signals import feedback_of, prompt_logprobs, prompt_signals
from specdec.decoding.turn import Batch
from specdec.errors import Guard
from specdec.record import StepRecord
from specdec.sampling.distributions import NodeDistributions
from specdec.target import PassOutput, PlannedPass
from specdec.tree import ROOT, Role


def step(batch: Batch) -> StepRecord:
    """One forward pass for all requests of a batch; each reads a chunk of its prompt, or gets tokens.

    A failing proposer, verifier or processor ends its own request; a failing backend ends all.
    """
    output = None
    batch.timed("propose", propose)
    with Guard(batch.target.author, [turn.request for turn in batch.turns]):
        output = batch.timed("forward", forward, batch.timed("compile", compile_pass))
        while batch.timed("forward", discard_spoiled, output):
            output = batch.timed("forward", forward, batch.timed("compile", compile_pass))
        batch.timed("verify", verify, output)
        batch.timed("commit", commit, output)
        batch.timed("propose", observe, output)
    record = record_of(batch, output)
    learn(batch, record)
    return record


def propose(batch: Batch) -> None:
    """Draft for all turns that aren't chunks of prompts."""
    for strategy, turns in batch.drafting.items():
        draft(batch, strategy, turns)


def compile_pass(batch: Batch) -> PlannedPass:
    """Compile one pass over all turns."""
    layers = set[int]()
    for turn in batch.turns:
        outcome, strategy = turn.outcome, turn.request.strategy
        if turn.num_read:
            layers |= strategy.prompt_layers
        if not outcome.is_chunk:
            layers |= strategy.tree_layers
            outcome.tree = turn.tree
            outcome.num_nodes += len(turn.tree)
    reading = [turn for turn in batch.turns if turn.num_read]
    return batch.target.compile(
        trees={turn.row: turn.tree for turn in batch.turns},
        prefixes={turn.row: turn.prefix for turn in reading},
        hidden=sorted(layers),
        wanted_prefixes=[turn.row for turn in reading if turn.request.reads_prompt_logits],
        chunks=[turn.row for turn in reading if turn.outcome.is_chunk],
        num_top=max(turn.request.strategy.num_top for turn in batch.turns),
        draws={} if batch.flags_ties else {turn.row: turn.request.draw for turn in batch.turns},
    )


def forward(batch: Batch, planned: PlannedPass) -> PassOutput:
    """Run a pass."""
    return batch.target.forward(planned)


def discard_spoiled(batch: Batch, output: PassOutput) -> bool:
    """Discard a pass in which a root's logits aren't finite although a draft was fed with it; False if there is none.

    NaN in a draft's keys and values passes through masks, so these roots are to be fed alone.
    """
    drafting = [turn for turns in batch.drafting.values() for turn in turns]
    spoiled = [turn for turn in drafting if not output.rows[turn.row].is_finite(ROOT) and len(turn.tree) > 1]
    if spoiled:
        batch.target.commit(output.planned, {})
    for turn in spoiled:
        batch.target.clear(turn.row)
        turn.tree = turn.proposed.subtree([])
    return bool(spoiled)


def verify(batch: Batch, output: PassOutput) -> None:
    """Each draft's verdict by its request's own rule, up to the first node without a distribution."""
    drafting = [turn for turns in batch.drafting.values() for turn in turns if turn.request.finish_reason is None]
    fetched = [turn for turn in drafting if turn.request.reads_logits and output.rows[turn.row].drawn(ROOT) is None]
    if fetched:  # the step's only transfer of logits
        output.fetch({turn.row: [ROOT, *turn.tree.nodes_with(Role.CANDIDATE)] for turn in fetched})
    for turn in drafting:
        request, tree, rule = turn.request, turn.tree, turn.request.verifier
        if rule.reads_q and not tree.has_true_q:
            rule, turn.outcome.has_fallen_back = batch.fallback, True
        warper, randomness, constraint = request.warper, request.randomness, request.constraint
        target = NodeDistributions(tree, output.rows[turn.row], request.tokens, warper, randomness, constraint)
        turn.distributions = target
        with Guard(f"verifier {type(rule).__name__}", [request]):
            verdict = rule.verify(tree, target, randomness)
            verdict.check(tree)
            turn.verdict = verdict


def commit(batch: Batch, output: PassOutput) -> None:
    """Append each verdict's tokens to its request; commit the keys and values of prompts and accepted paths."""
    for turn in batch.turns:
        if turn.num_read:
            turn.outcome.prompt_logprobs = prompt_logprobs(turn, output.rows[turn.row].of_prefix())
        turn.commit(batch.flags_ties)
    batch.target.commit(output.planned, {turn.row: turn.outcome.path for turn in batch.turns})


def observe(batch: Batch, output: PassOutput) -> None:
    """Pass each request's part of the prompt and its verdict to its drafter, unless the request has failed."""
    for turn in batch.turns:
        request, drafter = turn.request, turn.request.drafter
        if request.error is not None or drafter is None:
            continue
        with Guard(request.strategy.author, [request]):
            if turn.num_read:
                signals = prompt_signals(turn, output.rows[turn.row].of_prefix())
                drafter.read(turn.start + turn.num_read, budget(batch.target, request), signals)
            if turn.distributions is not None:
                feedback = feedback_of(turn, turn.distributions)
                drafter.receive(feedback)
                if request.finish_reason is None:
                    drafter.observe(feedback if turn.proposed is turn.tree else feedback.about(turn.proposed))
            request.num_reported = turn.row.length


def record_of(batch: Batch, output: PassOutput | None) -> StepRecord:
    """Return the step's record, which is then in all requests' statistics."""
    row_bytes = 0
    if ended := [turn.request for turn in batch.turns if turn.request.finish_reason is not None]:
        with Guard(batch.target.author, ended):
            row_bytes = batch.target.backend.row_bytes
    for turn in batch.turns:
        turn.outcome.finish_reason, turn.outcome.error = turn.request.finish_reason, turn.request.error
    record = StepRecord(
        kind=batch.kind,
        outcomes=tuple(turn.outcome for turn in batch.turns),
        seconds=batch.seconds,
        width=0 if output is None else output.width,
        num_positions=0 if output is None else output.num_positions,
        is_warm=batch.target.backend.is_warm,
        row_bytes=row_bytes,
        num_reread=0 if output is None else max(output.num_reread, default=0),
        num_passes=0 if output is None else output.num_passes,
    )
    for turn in batch.turns:
        turn.request.stats.note(record, turn.outcome)
    return record


def learn(batch: Batch, record: StepRecord) -> None:
    """Pass the record to each engine that drafted in the step."""
    for strategy, turns in batch.drafting.items():
        with Guard(strategy.author, [turn.request for turn in turns]):
            strategy.engine.learn(record, [turn.outcome for turn in turns])
