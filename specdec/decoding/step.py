"""The step: propose, compile, forward, verify, commit, keep, observe. It knows the order of things and nothing else."""

from collections.abc import Mapping
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass, field

import torch

from specdec.backends.base import OutputRow
from specdec.decoding.contexts import Contexts
from specdec.decoding.guard import guard
from specdec.decoding.proposals import ask, budget, checked
from specdec.decoding.request_state import Sequence
from specdec.decoding.signals import answers, select, wanted
from specdec.decoding.stats import Clock
from specdec.record import Outcome, StepRecord
from specdec.sampling.target import NO_TOKEN, SequenceTarget
from specdec.strategies.base import Feedback
from specdec.target import Pass, Row, Target
from specdec.tree import ROOT, DraftTree, Role
from specdec.verifiers.base import Verdict, Verifier

NOTHING = Verdict((ROOT,), ())


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one pass, each with its own plan.

    ``fallback`` decides about trees whose draws a rule that reads q can't rely on; it reads none. ``flags_ties``: two
    scores that lie close together might change places in a pass of another shape, so they are kept. ``is_waited_for``:
    others wait meanwhile, to whom a draft costs more than it may bring, so that none is fed where the text allows it.
    """

    target: Target
    sequences: ReadOnly[Sequence]
    fallback: Verifier
    flags_ties: bool = False
    contexts: Contexts | None = None
    is_waited_for: bool = False
    clock: Clock = field(default_factory=Clock)


@dataclass(slots=True)
class Turn:
    """One request's part of a step, as it comes about.

    ``proposed`` is the proposer's tree, ``tree`` what of it is fed and verified, ``kept`` the verdict up to the end of
    the text.
    """

    sequence: Sequence
    proposed: DraftTree
    tree: DraftTree
    num_spoiled: int = 0  # nodes that were fed in vain
    target: SequenceTarget | None = None
    verdict: Verdict = NOTHING
    kept: Verdict = NOTHING
    has_fallen_back: bool = False
    scores: tuple[torch.Tensor | None, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()


def step(batch: Batch) -> StepRecord:
    """One forward pass for the whole batch; each request advances by as many tokens as its own tree earned.

    What the cache doesn't hold of a prompt goes along with a request's first tree.
    """
    is_prompt = any(sequence.is_reading for sequence in batch.sequences)
    with batch.clock.phase("propose"):
        turns = propose(batch)
    planned = None
    with guard(batch.target.author, batch.sequences):
        planned, rows = forward(batch, turns)
    if planned is not None:
        with batch.clock.phase("verify"):
            verify(batch, turns, rows)
        with batch.clock.phase("commit"):
            commit(batch, turns)
            with guard(batch.target.author, batch.sequences):
                batch.target.keep(planned, {row_of(turn): turn.kept.path for turn in turns})
        with batch.clock.phase("propose"):
            observe(turns)
    record = recorded(batch, turns, planned, is_prompt)
    learn(record)
    return record


def propose(batch: Batch) -> list[Turn]:
    """One checked tree per request; a request whose proposal fails ends, and goes along with its root alone."""
    turns = {}
    for strategy in dict.fromkeys(sequence.plan.strategy for sequence in batch.sequences):
        asking = [sequence for sequence in batch.sequences if sequence.plan.strategy is strategy]
        budgets = [budget(batch.target, sequence) for sequence in asking]
        for sequence, limits, tree in zip(asking, budgets, ask(strategy, asking, budgets), strict=True):
            root = DraftTree(sequence.tokens[-1])
            turns[sequence] = Turn(sequence, root, root)
            with guard(f"proposer {strategy.name}", [sequence]):
                proposed = checked(tree, sequence, limits, batch.target.shapes.vocab_size)
                fed = proposed if batch.target.shapes.takes_trees else proposed.longest_chain()
                if batch.is_waited_for and sequence.plan.verifier.is_keyed:
                    fed = proposed.part([])
                fed.wanted = wanted(fed, strategy.wants)
                turns[sequence] = Turn(sequence, proposed, fed)
    return [turns[sequence] for sequence in batch.sequences]


def forward(batch: Batch, turns: ReadOnly[Turn]) -> tuple[Pass, Mapping[Row, OutputRow]]:
    """One pass over the trees; a second one where drafts spoiled it (``is_spoiled``), with roots in their place."""
    target = batch.target
    with batch.clock.phase("compile"):
        trees = {row_of(turn): turn.tree for turn in turns}
        trunks = {row_of(turn): turn.sequence.trunk for turn in turns if turn.sequence.is_reading}
        layers = {layer for turn in turns for layer in turn.sequence.plan.strategy.layers}
        planned = target.compile(trees, trunks, sorted(layers))
    with batch.clock.phase("forward"):
        rows = target.forward(planned)
        rows[row_of(turns[0])].output.num_top = max(turn.sequence.plan.strategy.num_top for turn in turns)
        spoiled = [turn for turn in turns if is_spoiled(turn.tree, rows[row_of(turn)])]
    if not spoiled:
        return planned, rows
    target.keep(planned, {})
    for turn in spoiled:
        target.clear(row_of(turn))
        turn.num_spoiled += len(turn.tree)
        turn.tree = turn.proposed.part([])
    return forward(batch, turns)


def is_spoiled(tree: DraftTree, row: OutputRow) -> bool:
    """Return True if the root's logits are not finite although a draft was fed with it.

    NaN in a draft's keys and values passes through masks, so the root is forwarded again alone.
    """
    return not row.is_finite(ROOT) and len(tree) > 1


def verify(batch: Batch, turns: ReadOnly[Turn], rows: Mapping[Row, OutputRow]) -> None:
    """Each request's verdict by its own rule, up to where the target has no answer."""
    with guard(batch.target.author, batch.sequences):
        fetch_logits(turns, rows)
    for turn in turns:
        sequence, verifier = turn.sequence, turn.sequence.plan.verifier
        if sequence.is_finished:
            continue
        turn.target = SequenceTarget(
            turn.tree, rows[row_of(turn)], sequence.tokens, sequence.warper, sequence.randomness
        )
        if verifier.reads_q and not turn.tree.has_true_laws:
            verifier, turn.has_fallen_back = batch.fallback, True
        with guard(f"verifier {type(verifier).__name__}", [sequence]):
            verdict = verifier.verify(turn.tree, turn.target, sequence.randomness)
            verdict.check(turn.tree)
            has_bonus = verdict.tokens[-1] != NO_TOKEN
            turn.verdict = verdict if has_bonus else Verdict(verdict.path, verdict.tokens[:-1])


def fetch_logits(turns: ReadOnly[Turn], rows: Mapping[Row, OutputRow]) -> None:
    """Copy all logits to the host that distributions will be made of, at once: waiting for a device costs most."""
    rows[row_of(turns[0])].output.fetch(
        [
            rows[row_of(turn)].place(node)
            for turn in turns
            if makes_distributions(turn.sequence)
            for node in (ROOT, *turn.tree.nodes_with(Role.CANDIDATE))
        ]
    )


def makes_distributions(sequence: Sequence) -> bool:
    """Return True if the verifier needs full logits on the host.

    The token is then not a plain argmax, and no processor of the caller's needs the model's device.
    """
    warper = sequence.warper
    return warper.is_on_host and not (warper.is_plain_argmax and sequence.plan.verifier.is_keyed)


def commit(batch: Batch, turns: ReadOnly[Turn]) -> None:
    """Each request's own commit; then, unless that was its end, it fails where the target had no answer."""
    for turn in turns:
        sequence, verdict, target = turn.sequence, turn.verdict, turn.target
        if sequence.is_finished or target is None:
            continue
        deciding = verdict.path[: len(verdict.tokens)]
        if batch.flags_ties and sequence.plan.shows_draws:  # not under rules that draw by distributions
            best_two = [target.best_two(node, sequence.randomness.gumbel) for node in deciding]
        else:
            best_two = []
        num_step = sequence.stats.steps + 1
        turn.kept = sequence.commit(verdict) if verdict.tokens else verdict
        sequence.best_two += best_two[: len(turn.kept.tokens)]
        if sequence.settings.keeps_scores:
            shown = [target.shown(node) for node in deciding[: len(turn.kept.tokens)]]
            turn.scores = tuple(None if one is None else one.to("cpu", torch.float32, copy=True) for one in shown)
        if sequence.settings.keeps_logits:
            raw = [target.logits(node) for node in deciding[: len(turn.kept.tokens)]]
            turn.logits = tuple(one.to("cpu", torch.float32, copy=True) for one in raw)
        last = verdict.path[-1]
        fault = target.faults.get(last) if len(verdict.tokens) < len(verdict.path) else None
        is_certain = last == ROOT or target.has_logits(last)  # else it is the next root, and may fare better alone
        if fault is not None and is_certain and not sequence.is_finished:
            told = type(fault)(f"step {num_step}: {fault}")
            told.__cause__ = fault.__cause__
            sequence.fail(told)


def observe(turns: ReadOnly[Turn]) -> None:
    """Tell each drafter what became of its own tree, unless no token will follow."""
    for turn in turns:
        sequence, strategy, target = turn.sequence, turn.sequence.plan.strategy, turn.target
        if sequence.is_finished or sequence.drafter is None or target is None:
            continue
        with guard(f"proposer {strategy.name}", [sequence]):
            shows_draws = sequence.plan.shows_draws
            signals = {
                (nodes, what): answers(what, select(nodes, turn.tree, turn.verdict.path), target, shows_draws)
                for nodes, what in strategy.about_trees
            }
            signals |= sequence.take_prompt_signals(strategy.about_prompts)
            feedback = Feedback(turn.tree, turn.kept.path, turn.kept.tokens, signals)
            sequence.drafter.observe(feedback.about(turn.proposed))


def recorded(batch: Batch, turns: ReadOnly[Turn], planned: Pass | None, is_prompt: bool) -> StepRecord:
    """The record of a step, whose ended requests leave, and its figures."""
    row_bytes = leave([turn.sequence for turn in turns if turn.sequence.is_finished], batch.target, batch.contexts)
    outcomes = tuple(
        Outcome(
            request=turn.sequence,
            tree=turn.tree,
            path=turn.kept.path,
            tokens=turn.kept.tokens,
            num_nodes=turn.num_spoiled + len(turn.tree),
            has_fallen_back=turn.has_fallen_back,
            finish_reason=turn.sequence.finish_reason,
            error=turn.sequence.error,
            scores=turn.scores,
            logits=turn.logits,
        )
        for turn in turns
    )
    record = StepRecord(
        kind="prompt" if is_prompt else "step",
        outcomes=outcomes,
        seconds=batch.clock.seconds,
        width=0 if planned is None else max(planned.layout.num_nodes),
        num_positions=0 if planned is None else planned.num_positions,
        is_settled=batch.target.is_settled,
        row_bytes=row_bytes,
    )
    for outcome in outcomes:
        outcome.request.stats.note(record, outcome)
    return record


def learn(record: StepRecord) -> None:
    """Tell each engine of the step that its requests took part in."""
    for strategy in dict.fromkeys(outcome.request.plan.strategy for outcome in record.outcomes):
        own = [outcome for outcome in record.outcomes if outcome.request.plan.strategy is strategy]
        with guard(f"proposer {strategy.name}", [outcome.request for outcome in own]):
            strategy.engine.learn(record, own)


def leave(ended: ReadOnly[Sequence], target: Target, contexts: Contexts | None) -> int:
    """Take requests that have ended out of the cache, and stop their drafting; the bytes that each row held.

    What a row holds may be kept for the requests that follow, unless its own failed.
    """
    row_bytes = 0
    if ended:
        with guard(target.author, ended):
            row_bytes = target.backend.row_bytes
    for sequence in ended:
        row, drafter = sequence.row, sequence.drafter
        sequence.row = sequence.drafter = None
        if row is not None:
            with guard(target.author, [sequence]):
                if contexts is not None and sequence.error is None:
                    contexts.let_go(row, sequence.tokens, sequence.context)
                else:
                    target.release(row)
        if drafter is not None:
            with guard(f"proposer {sequence.plan.strategy.name}", [sequence]):
                drafter.stop()
            sequence.notes = drafter.notes
    return row_bytes


def row_of(turn: Turn) -> Row:
    """The row of a request that takes part in a step."""
    assert turn.sequence.row is not None, "a request that takes part in a step is in the cache"
    return turn.sequence.row
