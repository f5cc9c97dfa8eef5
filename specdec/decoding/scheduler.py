"""The scheduler: requests with any settings join and leave between passes, and share passes.

One thread calls ``advance``. Other threads may call ``enqueue`` and ``cancel``, which the next ``advance`` carries out.
"""

import math
from collections import deque
from collections.abc import Sequence

from specdec.decoding.prefix_cache import PrefixCache
from specdec.decoding.request_state import RequestState
from specdec.decoding.step import step
from specdec.decoding.turn import Batch, RequestTurn
from specdec.errors import Guard, RequestError
from specdec.inputs.base import bytes_of_rows
from specdec.record import Outcome, RequestHandle, StepRecord
from specdec.strategies.base import started
from specdec.strategies.request import Retained
from specdec.target import CacheRow, Target
from specdec.verifiers.base import Verifier

_MOST_PROMPTS = 4  # per chunk's worth of tokens: a pass and a first draft have a cost, however short the prompt
_CROWD = 4  # decoding requests for which a first draft, in a pass of its own, is no gain
_MOST_CHUNKS = 8  # between two steps: about a second


class Scheduler:
    """Decodes requests until each has ended.

    Prompts are read first come, first served, chunk by chunk. If the backend ``packs_rows``, they share the passes of
    the decoding requests, with up to a chunk's tokens per pass. Otherwise rows are padded to the widest, so each chunk
    and each first draft has a pass of its own between two steps: few enough that decoding requests never wait long,
    more if more requests prefill than decode.

    Args:
        target: used by this scheduler alone.
        fallback: the verifier for drafts without a true q under a rule that reads q.
        max_batch_size: requests in the cache at once; the others wait, first come, first served.
        max_cache_bytes: keys and values of all requests, those of encoders included; a lone request may need more.
        flags_ties: retain the scores that show numeric ties.
        prefix_cache: of the same target; the rows of its contexts are dropped when memory is needed.
    """

    def __init__(
        self,
        target: Target,
        fallback: Verifier,
        *,
        max_batch_size: int,
        max_cache_bytes: int | None = None,
        flags_ties: bool = False,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self._target = target
        self._fallback = fallback
        self._max_batch_size = max_batch_size
        self._max_cache_bytes = max_cache_bytes
        self._flags_ties = flags_ties
        self._prefix_cache = PrefixCache(target) if prefix_cache is None else prefix_cache
        self._arrived = deque[RequestState]()  # this and the next are written by other threads
        self._cancelled = deque[RequestHandle]()
        self._waiting: list[RequestState] = []
        self._prefilling: list[RequestState] = []
        self._decoding: list[RequestState] = []
        self._num_read = 0  # tokens of prompts and nodes of first drafts since the last step

    def enqueue(self, request: RequestState) -> RequestState:
        """Queue a request; returns it as its handle.

        Raises:
            RequestError: if the request was added before, to this scheduler or another.
        """
        if request.is_added:
            raise RequestError("this request was added to a scheduler before: make another one of its prompt")
        request.is_added = True
        self._arrived.append(request)
        return request

    def cancel(self, request: RequestHandle) -> None:
        """End a request before the next pass, unless it has ended."""
        self._cancelled.append(request)

    @property
    def num_active(self) -> int:
        """Requests in the cache."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        """Requests that are queued."""
        return len(self._arrived) + len(self._waiting)

    def limit_drafts(self, turns: Sequence[RequestTurn]) -> None:
        """Set ``max_nodes`` of the turns of a pass whose drafts have a limit of their own."""

    def advance(self) -> StepRecord | None:
        """Run one pass, or end requests without one; None if there is nothing to do."""
        if self._arrived or self._cancelled:
            self._take_arrivals()
        ended, prompts = self._take_ended(), list[RequestTurn]()
        if ended is None and (self._prefilling or self._waiting):
            prompts = self._next_prompts()
            ended = self._take_ended()  # a request that failed to begin
        if ended is not None:
            return ended
        return self._step(prompts) if prompts or self._decoding else None

    def close(self) -> StepRecord | None:
        """Cancel all requests."""
        self._take_arrivals()
        self._cancelled.extend([*self._decoding, *self._prefilling, *self._waiting])
        self._take_arrivals()
        return self._take_ended()

    def _next_prompts(self) -> list[RequestTurn]:
        """The turns of the requests whose prompts the next pass reads.

        If the backend packs rows, these are as many as fit in a chunk. Otherwise it is one, or none if the decoding
        requests have waited long enough since their last step.
        """
        shapes, turns = self._target.shapes, list[RequestTurn]()
        num_read = 0 if shapes.packs_rows else self._num_read
        while shapes.packs_rows or not turns:
            if len(turns) == len(self._prefilling) and not self._begin_next():
                break
            request = self._prefilling[len(turns)]
            if request.is_finished:
                break
            turn = RequestTurn(request, self._target)
            num_tokens = self._num_tokens(turn)
            if num_read and num_read + num_tokens > shapes.chunk * self._num_chunks():
                break
            num_read += num_tokens
            turns.append(turn)
        return turns

    def _begin_next(self) -> bool:
        """Begin the first queued request; False if there is none, or no room."""
        if not self._waiting or not self._has_room(self._waiting[0]):
            return False
        self._announce_rows()
        request, retained = self._waiting.pop(0), tuple[Retained, ...]()
        self._prefilling.append(request)
        with Guard(self._target.author, [request]):
            retained = self._prefix_cache.open_row(request)
        if not request.is_finished:
            strategy, seen = request.strategy, request.for_drafter(self._target.shapes.vocab_size, retained)
            with Guard(strategy.author, [request]):
                request.drafter = started(strategy.engine, seen)
        return True

    def _num_tokens(self, turn: RequestTurn) -> int:
        """Tokens that a turn reads, counted as a fair share of a chunk at least."""
        return max(len(turn.prefix) + 1, self._target.shapes.chunk // _MOST_PROMPTS)

    def _num_chunks(self) -> float:
        """Chunks to read before the next step: more if more requests prefill than decode."""
        if self._target.shapes.packs_rows:
            return 1
        if not self._decoding:
            return math.inf
        num_prefilling = 1 + min(len(self._waiting), self._max_batch_size - self.num_active)
        return min(_MOST_CHUNKS, max(1, num_prefilling // len(self._decoding)))

    def _step(self, prompts: Sequence[RequestTurn]) -> StepRecord:
        """Run one pass over some prompts, and over the decoding requests if there are no prompts or rows are packed."""
        is_shared = not prompts or self._target.shapes.packs_rows
        joining = [turn.request for turn in prompts if not turn.outcome.is_chunk]
        decoding = [RequestTurn(request, self._target) for request in self._decoding] if is_shared else []
        is_chunk = bool(prompts) and not (decoding or joining)
        batch = Batch(
            target=self._target,
            turns=[*decoding, *prompts],
            kind="chunk" if is_chunk else "prompt" if prompts else "step",
            fallback=self._fallback,
            flags_ties=self._flags_ties,
            drops_drafts=not is_shared and len(self._decoding) >= _CROWD,
        )
        self.limit_drafts(batch.turns)
        self._prefilling = [request for request in self._prefilling if request not in joining]
        self._decoding += joining
        record = step(batch)
        if ended := [turn.request for turn in batch.turns if turn.outcome.finish_reason is not None]:
            self._release(ended)
        for request in joining:
            self._prefix_cache.save(request)
        # The width includes the first draft.
        self._num_read = 0 if is_shared else self._num_read + max(sum(map(self._num_tokens, prompts)), record.width)
        return record

    def _has_room(self, request: RequestState) -> bool:
        """Return True if the batch and the cache have room for a request; drops waiting contexts to make room."""
        if self.num_active >= self._max_batch_size:
            return False
        own = None if request.context is None else request.context.row
        while True:
            rows = [row for row in self._target.rows if row is not own]
            capacities = [row.capacity for row in rows]
            if not capacities or self._max_cache_bytes is None:
                return True
            num_bytes = self._target.backend.cache_bytes([*capacities, request.capacity])
            num_bytes += bytes_of_rows([*(row.inputs for row in rows), request.inputs])
            if num_bytes + self._prefix_cache.num_state_bytes <= self._max_cache_bytes:
                return True
            if self._target.backend.trim():  # a long text that has ended may have made all rows long
                continue
            if not self._prefix_cache.drop_oldest(but=request.context):
                return False

    def _announce_rows(self) -> None:
        """Announce to the backend the rows that will be open together, as far as memory allows."""
        backend, num_coming = self._target.backend, self._max_batch_size - self.num_active
        rows: list[CacheRow | RequestState] = [*self._target.rows, *self._waiting[:num_coming]]
        capacities, inputs = [row.capacity for row in rows], [row.inputs for row in rows]
        least = len(self._target.rows) + 1  # the next has room
        most = float("inf") if self._max_cache_bytes is None else self._max_cache_bytes
        while len(capacities) > least and backend.cache_bytes(capacities) + bytes_of_rows(inputs) > most:
            capacities.pop()
            inputs.pop()
        if backend.cache_bytes(capacities):  # unknown before the first pass
            backend.expect(capacities)

    def _take_arrivals(self) -> None:
        """Carry out ``enqueue`` and ``cancel``."""
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
        while self._cancelled:
            request = self._cancelled.popleft()
            if request.finish_reason is None:
                request.finish_reason = "cancelled"

    def _take_ended(self) -> StepRecord | None:
        """Let requests leave that have ended outside of a step."""
        known = (*self._decoding, *self._prefilling, *self._waiting)
        ended = [request for request in known if request.finish_reason is not None]
        if not ended:
            return None
        row_bytes = 0
        with Guard(self._target.author, ended):
            row_bytes = self._target.backend.row_bytes
        self._release(ended)
        outcomes = tuple(Outcome(each, finish_reason=each.finish_reason, error=each.error) for each in ended)
        record = StepRecord("none", outcomes, row_bytes=row_bytes)
        for request, outcome in zip(ended, outcomes, strict=True):
            request.stats.note(record, outcome)
        return record

    def _release(self, ended: Sequence[RequestState]) -> None:
        """Let requests leave that have ended, with their rows and drafters."""
        for request in ended:
            for requests in (self._decoding, self._prefilling, self._waiting):
                if request in requests:
                    requests.remove(request)
            with Guard(self._target.author, [request]):
                self._prefix_cache.close_row(request)
            if (drafter := request.drafter) is not None:
                with Guard(request.strategy.author, [request]):
                    drafter.stop()
                request.notes, request.drafter = (*request.strategy.engine.notes, *drafter.notes), None
