"""The step: propose, compile, forward, verify, commit, observe. It knows the order of things and nothing else."""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ReadOnly
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from specdec.backends.base import Backend, Output
from specdec.decoding.sequence import Sequence
from specdec.decoding.stats import Clock
from specdec.errors import PluginError, SpecdecError, failure
from specdec.layout import Compiler
from specdec.sampling.target import NO_TOKEN, SequenceTarget
from specdec.strategies.base import Drafter, Engine, Feedback, Signal, TopK, What, select, wanted
from specdec.tree import ROOT, Budget, DraftTree
from specdec.verifiers.base import Verdict, Verifier

UNLIMITED = 1 << 20  # positions, for models that name no limit


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects a run is made of: one plug-in per stage, and what the proposer wants to hear.

    ``fallback`` serves the trees whose draws a verifier that reads q can't rely on; it reads none. ``flags_ties``: two
    scores that lie close together might change places in a pass of another shape, so they are kept.
    """

    engine: Engine
    proposer_name: str
    wants: frozenset[Signal]
    compiler: Compiler
    backend: Backend
    verifier: Verifier
    fallback: Verifier
    max_nodes: int
    flags_ties: bool = False


def step(sequences: ReadOnly[Sequence], parts: Parts) -> None:
    """One forward pass for the whole batch; each sequence advances by as many tokens as its own tree earned."""
    clock = Clock(sequence.stats for sequence in sequences)
    with clock.phase("propose"):
        trees = propose(sequences, parts)
    output: Output | None = None
    with fail_together(sequences, author_of_passes(parts)):
        trees, output = forward(sequences, trees, parts, clock)
    if output is None:
        return
    commits = conclude(sequences, trees, output, parts, clock)
    with clock.phase("commit"), fail_together(sequences, author_of_passes(parts)):
        parts.backend.keep([commit.path for commit in commits])


def forward(
    sequences: ReadOnly[Sequence], trees: ReadOnly[DraftTree], parts: Parts, clock: Clock
) -> tuple[ReadOnly[DraftTree], Output]:
    """One pass over the trees; a second one where drafts spoiled it (``is_spoiled``), with roots in their place."""
    with clock.phase("compile"):
        lengths = [len(sequence.tokens) - 1 for sequence in sequences]
        layout = parts.compiler.compile(trees, lengths, parts.backend.shapes)
    with clock.phase("forward"):
        output = parts.backend.forward(layout)
    spoiled = [row for row, tree in enumerate(trees) if is_spoiled(tree, output, row)]
    if not spoiled:
        return trees, output
    parts.backend.keep([()] * len(trees))
    for row in spoiled:
        sequences[row].stats.num_nodes += len(trees[row])
        parts.backend.clear(row)
    roots = [DraftTree(tree.tokens[ROOT]) if row in spoiled else tree for row, tree in enumerate(trees)]
    return forward(sequences, roots, parts, clock)


def is_spoiled(tree: DraftTree, output: Output, row: int) -> bool:
    """True where a root has no logits, and may have some without its draft: masks hide any number but NaN."""
    return len(tree) > 1 and not output.row(row).is_finite(ROOT)


def prefill(sequence: Sequence, parts: Parts) -> None:
    """A sequence's first step: its tree goes along with the prompt, in one pass."""
    clock = Clock([sequence.stats])
    with clock.phase("propose"):
        start(sequence, parts)
        has_failed = sequence.is_finished  # it goes along with its root alone, as one whose proposal fails
        trees = [DraftTree(sequence.tokens[-1])] if has_failed else propose([sequence], parts)
    with clock.phase("forward"), fails_alone(sequence, author_of_passes(parts)):
        capacity = sequence.prompt_length + sequence.settings.max_new_tokens
        output = parts.backend.prefill(sequence.tokens, trees[0], capacity)
        if is_spoiled(trees[0], output, 0):  # as in a step
            sequence.stats.num_nodes += len(trees[0])
            parts.backend.release(parts.backend.num_rows - 1)
            trees = [DraftTree(sequence.tokens[-1])]
            output = parts.backend.prefill(sequence.tokens, trees[0], capacity)
    if sequence.is_finished:
        return
    commits = conclude([sequence], trees, output, parts, clock)
    with clock.phase("commit"), fails_alone(sequence, author_of_passes(parts)):
        parts.backend.keep([*(() for _ in range(parts.backend.num_rows - 1)), commits[0].path])


def conclude(
    sequences: ReadOnly[Sequence], trees: ReadOnly[DraftTree], output: Output, parts: Parts, clock: Clock
) -> list[Verdict]:
    """From logits to committed tokens: verify, commit, observe."""
    with clock.phase("verify"):
        targets = [
            SequenceTarget(tree, output.row(row), sequence.tokens, sequence.warper, sequence.randomness)
            for row, (tree, sequence) in enumerate(zip(trees, sequences, strict=True))
        ]
        verdicts = [verify(*item, parts) for item in zip(sequences, trees, targets, strict=True)]
        signals = [answer(*item, parts) for item in zip(sequences, trees, targets, verdicts, strict=True)]
    with clock.phase("commit"):
        commits = [commit(*item, parts) for item in zip(sequences, verdicts, targets, strict=True)]
    with clock.phase("propose"):
        for sequence, tree, kept, told in zip(sequences, trees, commits, signals, strict=True):
            sequence.stats.num_nodes += len(tree)
            observe(sequence, Feedback(tree, kept.path, kept.tokens, told), parts)
    return commits


def run(waiting: Iterable[Sequence], parts: Parts, max_batch_size: int) -> Iterator[list[Sequence]]:
    """Decode until all sequences are finished; yields those that advanced, after each prefill and each step.

    A finished sequence leaves the batch at once and a waiting one takes its place. Whatever is under way when the
    caller stops asking is cancelled.
    """
    queue, active = deque(waiting), list[Sequence]()
    try:
        while queue or active:
            if queue and len(active) < max_batch_size:
                advanced = [queue.popleft()]
                active += advanced
                prefill(advanced[0], parts)
            else:
                advanced = list(active)
                step(active, parts)
            retire(active, parts)
            yield advanced
    finally:
        for sequence in [*queue, *active]:
            sequence.finish_reason = "cancelled"
        retire(active, parts)


def start(sequence: Sequence, parts: Parts) -> None:
    """Begin the sequence's drafting."""
    request = sequence.request(parts.backend.shapes.vocab_size, parts.proposer_name, parts.verifier.is_keyed)
    with fails_alone(sequence, f"proposer {parts.proposer_name}"):
        sequence.drafter = parts.engine.start(request)


def propose(sequences: ReadOnly[Sequence], parts: Parts) -> ReadOnly[DraftTree]:
    """One checked tree per sequence; a sequence whose proposal fails ends, and goes along with its root alone."""
    shapes = parts.backend.shapes
    most_depth = UNLIMITED if parts.compiler.max_depth is None else parts.compiler.max_depth
    most_positions = UNLIMITED if shapes.max_positions is None else shapes.max_positions
    budgets = [
        Budget(
            num_nodes=parts.max_nodes,
            depth=min(most_depth, most_positions - len(sequence.tokens)),
            num_tokens=sequence.num_remaining,
        )
        for sequence in sequences
    ]
    drafters = [sequence.drafter for sequence in sequences if sequence.drafter is not None]
    assert len(drafters) == len(sequences), "a sequence without a drafter has failed, and failed ones are retired"
    trees = []
    for sequence, budget, tree in zip(sequences, budgets, ask(parts, drafters, budgets), strict=True):
        root = sequence.tokens[-1]
        checked = DraftTree(root)
        with fails_alone(sequence, f"proposer {parts.proposer_name}"):
            if isinstance(tree, Exception):
                raise tree
            if not isinstance(tree, DraftTree):
                raise PluginError(f"proposer {parts.proposer_name} returned {tree!r}, which is not a DraftTree")
            tree.check(root, shapes.vocab_size, budget, parts.proposer_name)
            if parts.verifier.reads_q and tree.has_true_laws:
                tree.check_draws(shapes.vocab_size, parts.proposer_name)
            checked = tree if shapes.takes_trees else tree.longest_chain()
            checked.wanted = wanted(checked, parts.wants)
        trees.append(checked)
    return trees


def ask(parts: Parts, drafters: ReadOnly[Drafter], budgets: ReadOnly[Budget]) -> ReadOnly[DraftTree | Exception]:
    """One proposal per drafter; an engine that fails as a whole fails each of them."""
    try:
        proposals = list(parts.engine.propose_many(drafters, budgets))
    except Exception as error:  # a third party's code
        return [error] * len(drafters)
    if len(proposals) != len(drafters):
        fault = f"proposer {parts.proposer_name} returned {len(proposals)} trees for {len(drafters)} requests"
        return [PluginError(fault)] * len(drafters)
    return proposals


def verify(sequence: Sequence, tree: DraftTree, target: SequenceTarget, parts: Parts) -> Verdict:
    """The verifier's verdict, up to where the target has no answer; an empty one for a sequence that has failed."""
    if not sequence.is_finished:
        verifier = parts.verifier
        if verifier.reads_q and not tree.has_true_laws:
            verifier = parts.fallback
            sequence.stats.num_fallbacks += 1
        with fails_alone(sequence, f"verifier {type(verifier).__name__}"):
            verdict = verifier.verify(tree, target, sequence.randomness)
            verdict.check(tree)
            return verdict if verdict.tokens[-1] != NO_TOKEN else Verdict(verdict.path, verdict.tokens[:-1])
    return Verdict((ROOT,), ())


def answer(
    sequence: Sequence, tree: DraftTree, target: SequenceTarget, verdict: Verdict, parts: Parts
) -> dict[Signal, dict[int, Any]]:
    """The signals that the proposer declared it wants, each by itself.

    Draws tell what the noise of later positions will be; under a rule that isn't keyed by position a proposer that knew
    it would bias the text, and hears the argmax instead.
    """
    if not verdict.tokens:
        return {}
    shows_draws = parts.verifier.is_keyed or sequence.settings.temperature == 0.0
    signals = dict[Signal, dict[int, Any]]()
    with fails_alone(sequence, f"what proposer {parts.proposer_name} wants to hear"):
        for nodes, what in parts.wants:
            chosen = select(nodes, tree, verdict.path)
            if isinstance(what, TopK):
                signals[nodes, what] = target.likeliest(chosen, what.k)
            else:
                told = {node: target.predict(node, what is What.DRAW and shows_draws) for node in chosen}
                signals[nodes, what] = {node: token for node, token in told.items() if token is not None}
    return signals


def commit(sequence: Sequence, verdict: Verdict, target: SequenceTarget, parts: Parts) -> Verdict:
    """The sequence's own commit; then, unless that was its end, it fails where the target had no answer."""
    if sequence.is_finished:
        return Verdict((ROOT,), ())
    num_step = sequence.stats.steps + 1
    best_two = runners_up(sequence, verdict, target, parts)  # before the text grows: a node's path begins behind it
    kept = sequence.commit(verdict) if verdict.tokens else verdict
    sequence.best_two += best_two[: len(kept.tokens)]
    last = verdict.path[-1]
    fault = target.faults.get(last) if len(verdict.tokens) < len(verdict.path) else None
    is_certain = last == ROOT or target.has_logits(last)  # else it is the next root, and may fare better alone
    if fault is not None and is_certain and not sequence.is_finished:
        told = type(fault)(f"step {num_step}: {fault}")
        told.__cause__ = fault.__cause__
        sequence.fail(told)
    return kept


def runners_up(sequence: Sequence, verdict: Verdict, target: SequenceTarget, parts: Parts) -> list[torch.Tensor | None]:
    """Each new token's score and its runner-up's, where ties are to be told; not under rules that draw by laws."""
    if not parts.flags_ties or not (parts.verifier.is_keyed or sequence.settings.temperature == 0.0):
        return []
    return [target.best_two(node, sequence.randomness.gumbel) for node in verdict.path[: len(verdict.tokens)]]


def observe(sequence: Sequence, feedback: Feedback, parts: Parts) -> None:
    """Tell the drafter, unless no token will follow."""
    if not sequence.is_finished and sequence.drafter is not None:
        with fails_alone(sequence, f"proposer {parts.proposer_name}"):
            sequence.drafter.observe(feedback)


def retire(active: list[Sequence], parts: Parts) -> None:
    """Let finished sequences leave the batch; as in the backend, the last row takes a free one's place."""
    for row in reversed(range(len(active))):
        sequence = active[row]
        if sequence.is_finished:
            # Buffers never shrink while rows are open, so what is held at the end is the peak.
            sequence.stats.peak_cache_bytes = parts.backend.row_bytes
            active[row] = active[-1]
            active.pop()
            parts.backend.release(row)
            if sequence.drafter is not None:
                with fails_alone(sequence, f"proposer {parts.proposer_name}"):
                    sequence.drafter.stop()


def fails_alone(sequence: Sequence, author: str) -> AbstractContextManager[None]:
    """Whatever a plug-in raises ends its own sequence and names the plug-in."""
    return fail_together([sequence], author)


@contextmanager
def fail_together(sequences: ReadOnly[Sequence], author: str) -> Iterator[None]:
    """Whatever is raised ends these sequences, and names its author where that is a third party."""
    try:
        yield
    except Exception as error:
        fault = error if isinstance(error, SpecdecError) else failure(author, error)
        for sequence in sequences:
            sequence.fail(fault)


def author_of_passes(parts: Parts) -> str:
    """The plug-ins behind whatever a pass raises: modelling code, a mask compiler, a lack of memory."""
    return f"backend {type(parts.backend).__name__} with {type(parts.compiler).__name__}"
