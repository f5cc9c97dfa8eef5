"""A request enters the cache, and leaves it."""

from collections.abc import Sequence

from specdec.decoding.contexts import Contexts
from specdec.decoding.failures import blame_backend, blame_proposer
from specdec.decoding.request_state import RequestState
from specdec.decoding.retention import Retention
from specdec.strategies.base import started
from specdec.strategies.retained import Retained
from specdec.target import Target


def begin(request: RequestState, target: Target, contexts: Contexts) -> None:
    """Open a row for a request, or reuse its context's, and start its drafter."""
    with blame_backend(target, [request]):
        if request.context is not None or contexts.prefixes is not None:
            contexts.check_model()
        may_reuse = _may_reuse(request)
        if request.context is not None and may_reuse:
            request.row, request.retained = contexts.row_for(request.context, request.tokens, request.plan.strategy)
        if request.row is None:
            request.row = target.open(request.capacity)
            if contexts.prefixes is not None and may_reuse:
                request.retained = contexts.prefixes.fill(request.row, request.tokens, request.plan.strategy)
        request.row.capacity = max(request.row.capacity, request.capacity)
        request.stats.num_reused = request.num_reported = request.row.length
    if request.is_finished:
        return
    strategy = request.plan.strategy
    with blame_proposer(strategy, [request]):
        request.drafter = started(strategy.engine, request.for_drafter(target.shapes.vocab_size))


def _may_reuse(request: RequestState) -> bool:
    """Return False if the whole prompt must be read: for its log-probabilities, or for drafts that decide the text."""
    if request.settings.prompt_logprobs is not None:
        return False
    return request.plan.verifier.is_keyed or not request.plan.strategy.about_prompts


def retention_of(request: RequestState) -> Retention | None:
    """Return the function by which caches retain a drafter's state; None unless its strategy reads prompts."""
    strategy, drafter = request.plan.strategy, request.drafter
    if drafter is None or not strategy.reads_prompts:
        return None

    def retain(start: int, stop: int) -> Retained | None:
        with blame_proposer(strategy, [request]):
            return drafter.retain(start, stop)
        return None

    return Retention(strategy, request.num_reported, retain)


def leave(ended: Sequence[RequestState], target: Target, contexts: Contexts) -> int:
    """Release the rows of ended requests and stop their drafters; return the bytes of each row.

    A context or the prefix cache may retain a row's keys and values, unless the request failed.
    """
    row_bytes = 0
    if ended:
        with blame_backend(target, ended):
            row_bytes = target.backend.row_bytes
    for request in ended:
        row, drafter, retention = request.row, request.drafter, retention_of(request)
        request.row = request.drafter = None
        with blame_backend(target, [request]):
            if row is not None and request.error is None:
                contexts.take_row(row, request.tokens, request.context, retention)
            elif row is not None:
                target.release(row)
        if drafter is not None:
            with blame_proposer(request.plan.strategy, [request]):
                drafter.stop()
            request.notes = (*request.plan.strategy.engine.notes, *drafter.notes)
    return row_bytes
