"""The step: propose, compile, forward, verify, commit, observe."""

from collections.abc import Iterator, Sequence

import torch

from specdec.decoding.failures import blame_backend, blame_proposer, blame_verifier
from specdec.decoding.lifecycle import leave
from specdec.decoding.phases import timed
from specdec.decoding.plan import Strategy
from specdec.decoding.prefill import prompt_signals, tree_of_chunk
from specdec.decoding.prompt_logprobs import prompt_logprobs
from specdec.decoding.proposals import MAX_NODES, allowed_part, budget, checked, propose_all
from specdec.decoding.request_state import RequestState
from specdec.decoding.signals import feedback_of, reads_logits_of_prompts, wanted
from specdec.decoding.turns import Batch, RequestTurn
from specdec.record import Outcome, StepRecord
from specdec.sampling.distributions import NO_TOKEN, NodeDistributions
from specdec.target import CacheRow, PassOutput, PlannedPass
from specdec.tree import ROOT, DraftTree, Role
from specdec.verifiers.base import Verdict


def step(batch: Batch) -> StepRecord:
    """One forward pass for all requests of a batch; each reads a chunk of its prompt, or gets tokens.

    A failing proposer, verifier or processor ends its own request; a failing backend ends all.
    """
    reads_prompts = any(request.is_prefilling for request in batch.requests)
    turns, output = propose(batch), None
    with blame_backend(batch.target, batch.requests):
        planned = compile_pass(batch, turns)
        output = forward(batch, turns, planned)
        while discard_spoiled(batch, turns, output):
            output = forward(batch, turns, compile_pass(batch, turns))
        verify(batch, turns, output)
        commit(batch, turns, output)
        observe(batch, turns, output)
    record = record_of(batch, turns, output, reads_prompts)
    learn(turns, record)
    return record


@timed("propose")
def propose(batch: Batch) -> list[RequestTurn]:
    """A turn per request: the next chunk of its prompt, or a checked draft; the root alone if its proposer fails."""
    turns = dict[RequestState, RequestTurn]()
    for request in batch.requests:
        if chunk := batch.chunks.get(request):
            tree = tree_of_chunk(chunk, request)
            kept = Verdict(tuple(range(len(tree))), ())
            turns[request] = RequestTurn(request, tree, tree, kept, is_chunk=True, read=tree)
    drafting = [request for request in batch.requests if request not in turns]
    for strategy in dict.fromkeys(request.plan.strategy for request in drafting):
        own = [request for request in drafting if request.plan.strategy is strategy]
        turns |= zip(own, _drafts(batch, strategy, own), strict=True)
    return [turns[request] for request in batch.requests]


def _drafts(batch: Batch, strategy: Strategy, requests: Sequence[RequestState]) -> Iterator[RequestTurn]:
    """Draft for one strategy's requests, all at once."""
    max_nodes = [batch.max_nodes.get(request, MAX_NODES) for request in requests]
    budgets = [budget(batch.target, *each) for each in zip(requests, max_nodes, strict=True)]
    if batch.target.shapes.takes_drafts:
        proposals = propose_all(strategy, requests, budgets)
    else:
        proposals = [DraftTree(request.tokens[-1]) for request in requests]
    for request, limits, most, proposal in zip(requests, budgets, max_nodes, proposals, strict=True):
        root = DraftTree(request.tokens[-1])
        turn = RequestTurn(request, root, root)
        if request.is_prefilling and (rest := request.uncached_prefix):
            turn.read = tree_of_chunk(rest, request)
        with blame_proposer(strategy, [request]):
            proposed = checked(proposal, request, limits, batch.target.shapes.vocab_size, most)
            tree = allowed_part(proposed, request.constraint)
            if not batch.target.shapes.takes_trees:
                tree = tree.longest_chain()
            if batch.drops_drafts and request.plan.verifier.is_keyed:
                tree = proposed.subtree([])
            tree.wanted = wanted(tree, strategy.wants)
            turn.proposed, turn.tree = proposed, tree
        yield turn


@timed("compile")
def compile_pass(batch: Batch, turns: Sequence[RequestTurn]) -> PlannedPass:
    """Compile one pass over all turns; a first draft's row is fed the rest of the prompt before the draft."""
    trees, trunks, wanted_trunks = dict[CacheRow, DraftTree](), dict[CacheRow, list[int]](), set[CacheRow]()
    layers = set[int]()
    for turn in turns:
        strategy, trees[turn.row], turn.start = turn.request.plan.strategy, turn.tree, turn.row.length
        if turn.read is not None:
            layers |= strategy.prompt_layers
        if not turn.is_chunk:
            layers |= strategy.tree_layers
            if turn.read is not None:
                trunks[turn.row] = turn.read.tokens
                wanted_trunks |= {turn.row} if reads_logits_of_prompts(turn.request.plan) else set()
    chunks = [turn.row for turn in turns if turn.is_chunk]
    return batch.target.compile(trees, trunks, sorted(layers), wanted_trunks, chunks)


@timed("forward")
def forward(batch: Batch, turns: Sequence[RequestTurn], planned: PlannedPass) -> PassOutput:
    """Run a pass."""
    return batch.target.forward(planned, num_top=max(turn.request.plan.strategy.num_top for turn in turns))


@timed("forward")
def discard_spoiled(batch: Batch, turns: Sequence[RequestTurn], output: PassOutput) -> bool:
    """Discard a pass in which a root's logits aren't finite although a draft was fed with it; False if there is none.

    NaN in a draft's keys and values passes through masks, so these roots are to be fed alone.
    """
    drafting = [turn for turn in turns if not turn.is_chunk]
    spoiled = [turn for turn in drafting if not output.rows[turn.row].is_finite(ROOT) and len(turn.tree) > 1]
    if spoiled:
        batch.target.keep(output.planned, {})
    for turn in spoiled:
        batch.target.clear(turn.row)
        turn.num_discarded += len(turn.tree)
        turn.tree = turn.proposed.subtree([])
    return bool(spoiled)


@timed("verify")
def verify(batch: Batch, turns: Sequence[RequestTurn], output: PassOutput) -> None:
    """Each draft's verdict by its request's own rule, up to the first node without a distribution."""
    drafting = [turn for turn in turns if not (turn.is_chunk or turn.request.is_finished)]
    fetch_logits(drafting, output)
    for turn in drafting:
        request, verifier, outputs = turn.request, turn.request.plan.verifier, output.rows[turn.row]
        warper, randomness, constraint = request.warper, request.randomness, request.constraint
        turn.distributions = NodeDistributions(turn.tree, outputs, request.tokens, warper, randomness, constraint)
        if verifier.reads_q and not turn.tree.has_true_q:
            verifier, turn.has_fallen_back = batch.fallback, True
        with blame_verifier(verifier, request):
            verdict = verifier.verify(turn.tree, turn.distributions, request.randomness)
            verdict.check(turn.tree)
            has_bonus = verdict.tokens[-1] != NO_TOKEN
            turn.verdict = verdict if has_bonus else Verdict(verdict.path, verdict.tokens[:-1])


def fetch_logits(turns: Sequence[RequestTurn], output: PassOutput) -> None:
    """Copy all logits that become distributions to the host, in the step's only transfer of logits."""
    reading = [turn for turn in turns if _reads_logits(turn.request)]
    output.fetch({turn.row: [ROOT, *turn.tree.nodes_with(Role.CANDIDATE)] for turn in reading})


def _reads_logits(request: RequestState) -> bool:
    """Return True if the verifier reads full logits on the host.

    The token isn't a plain argmax then, and no processor of the caller's needs the model's device.
    """
    warper = request.warper
    return warper.is_on_host and not (warper.is_plain_argmax and request.plan.verifier.is_keyed)


@timed("commit")
def commit(batch: Batch, turns: Sequence[RequestTurn], output: PassOutput) -> None:
    """Append each verdict's tokens to its request, and keep the keys and values of chunks and accepted paths."""
    for turn in turns:
        if turn.read is not None:
            stop, of_prompt = turn.start + len(turn.read), output.rows[turn.row].of_trunk()
            turn.prompt_logprobs = prompt_logprobs(turn.request, turn.start, stop, of_prompt)
        if turn.distributions is not None and not turn.request.is_finished:
            _commit(turn, turn.distributions, batch.flags_ties)
    batch.target.keep(output.planned, {turn.row: turn.kept.path for turn in turns})


def _commit(turn: RequestTurn, target: NodeDistributions, flags_ties: bool) -> None:
    """Append a verdict's tokens, and retain the scores that decided them."""
    request, verdict = turn.request, turn.verdict
    deciding = verdict.path[: len(verdict.tokens)]
    if flags_ties and request.plan.shows_draws:  # rules that draw by distributions have no runner-up
        best_two = [target.best_two(node, request.randomness.gumbel) for node in deciding]
    else:
        best_two = []
    turn.kept = request.commit(verdict) if verdict.tokens else verdict
    kept = deciding[: len(turn.kept.tokens)]
    request.best_two += best_two[: len(kept)]
    if request.settings.keeps_scores:
        turn.scores = tuple(None if one is None else _copied(one) for one in map(target.scores, kept))
    if request.settings.keeps_logits:
        turn.logits = tuple(_copied(target.outputs.logits(node)) for node in kept)
    _fail_without_distribution(request, verdict, target)


def _copied(values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", torch.float32, copy=True)


def _fail_without_distribution(request: RequestState, verdict: Verdict, target: NodeDistributions) -> None:
    """Fail a request whose text goes on at a node that has an error in place of a distribution."""
    last = verdict.path[-1]
    fault = target.faults.get(last) if len(verdict.tokens) < len(verdict.path) else None
    is_certain = last == ROOT or target.outputs.is_finite(last)  # otherwise the node is the next root, and is fed alone
    if fault is not None and is_certain and not request.is_finished:
        error = type(fault)(f"step {request.stats.steps + 1}: {fault}")
        error.__cause__ = fault.__cause__
        request.fail(error)


@timed("propose")
def observe(batch: Batch, turns: Sequence[RequestTurn], output: PassOutput) -> None:
    """Pass each request's part of the prompt and its verdict to its drafter, unless the request has failed."""
    for turn in turns:
        request, strategy, drafter = turn.request, turn.request.plan.strategy, turn.request.drafter
        if request.error is not None or drafter is None:
            continue
        with blame_proposer(strategy, [request]):
            if turn.read is not None:
                signals = prompt_signals(request, turn.read, turn.start, output.rows[turn.row].of_trunk())
                drafter.read(turn.start + len(turn.read), budget(batch.target, request), signals)
            if turn.distributions is not None:
                feedback = feedback_of(request, turn.tree, turn.kept, turn.distributions)
                drafter.receive(feedback)
                if not request.is_finished:
                    drafter.observe(feedback.about(turn.proposed))
            request.num_reported = turn.row.length


def record_of(batch: Batch, turns: Sequence[RequestTurn], output: PassOutput | None, reads_prompts: bool) -> StepRecord:
    """Let ended requests leave; return the step's record, which is in all requests' statistics."""
    row_bytes = leave([turn.request for turn in turns if turn.request.is_finished], batch.target, batch.contexts)
    num_nodes = () if output is None else output.planned.layout.num_nodes
    num_reread = [0] * len(num_nodes) if output is None or not output.num_reread else output.num_reread
    record = StepRecord(
        kind="chunk" if all(turn.is_chunk for turn in turns) else "prompt" if reads_prompts else "step",
        outcomes=tuple(map(_outcome, turns)),
        seconds=batch.seconds,
        width=max(map(sum, zip(num_nodes, num_reread, strict=True)), default=0),
        num_positions=0 if output is None else output.planned.num_positions,
        is_warm=batch.target.is_warm,
        row_bytes=row_bytes,
        num_reread=max(num_reread, default=0),
        num_passes=0 if output is None else output.num_passes,
    )
    for turn, outcome in zip(turns, record.outcomes, strict=True):
        turn.request.stats.note(record, outcome)
    return record


def _outcome(turn: RequestTurn) -> Outcome:
    request = turn.request
    if turn.is_chunk:
        return Outcome(
            request,
            is_chunk=True,
            finish_reason=request.finish_reason,
            error=request.error,
            prompt_logprobs=turn.prompt_logprobs,
        )
    return Outcome(
        request=request,
        tree=turn.tree,
        path=turn.kept.path,
        tokens=turn.kept.tokens,
        num_nodes=turn.num_discarded + len(turn.tree),
        has_fallen_back=turn.has_fallen_back,
        finish_reason=request.finish_reason,
        error=request.error,
        scores=turn.scores,
        logits=turn.logits,
        prompt_logprobs=turn.prompt_logprobs,
    )


def learn(turns: Sequence[RequestTurn], record: StepRecord) -> None:
    """Pass the record to each engine that drafted in the step."""
    outcomes = {turn.request: each for turn, each in zip(turns, record.outcomes, strict=True) if not turn.is_chunk}
    for strategy in dict.fromkeys(request.plan.strategy for request in outcomes):
        own = [request for request in outcomes if request.plan.strategy is strategy]
        with blame_proposer(strategy, own):
            strategy.engine.learn(record, [outcomes[request] for request in own])
