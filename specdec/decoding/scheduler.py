"""The scheduler: requests of any plans join and leave between passes, and share those that they can.

One thread advances it. ``add`` and ``cancel`` may come from any other: they leave a note, which the next ``advance``
reads.
"""

import math
from collections import deque
from collections.abc import Sequence as ReadOnly

from specdec.decoding.contexts import Contexts
from specdec.decoding.prefill import begin, next_chunk, read
from specdec.decoding.request_state import Sequence
from specdec.decoding.step import Batch, leave, step
from specdec.errors import RequestError
from specdec.record import Outcome, StepRecord
from specdec.target import Target
from specdec.verifiers.base import Verifier

_MOST_PASSES = 4  # over a chunk's worth of prompts: each costs something, however short it is
_CROWD = 4  # requests that decode: a first draft, in its own request's pass alone, is no gain to that many
_MOST_CHUNKS = 8  # between two steps: a second or so for those that decode


class Scheduler:
    """Decodes requests until each has ended.

    Between two steps of those that decode, others read a chunk of their prompts, in a few passes, so that neither a
    long prompt nor many short ones make them wait, and more of them where more requests read than decode. Prompts
    are read one after another, and a request's first step is its own pass.

    Args:
        target: drives the model; nobody else has rows in it meanwhile.
        fallback: decides about drafts that a rule which reads q can't rely on.
        max_batch_size: requests in the cache at once; the others wait, first come, first served.
        max_cache_bytes: of keys and values that requests may come to need together; one alone may need more.
        flags_ties: keep what tells numeric ties.
        contexts: of requests that came before, on the same target; they make room where it is needed.
    """

    def __init__(
        self,
        target: Target,
        fallback: Verifier,
        *,
        max_batch_size: int,
        max_cache_bytes: int | None = None,
        flags_ties: bool = False,
        contexts: Contexts | None = None,
    ) -> None:
        self._target = target
        self._fallback = fallback
        self._max_batch_size = max_batch_size
        self._max_cache_bytes = max_cache_bytes
        self._flags_ties = flags_ties
        self._contexts = Contexts(target) if contexts is None else contexts
        self._arrived = deque[Sequence]()  # these two are written by other threads
        self._cancelled = deque[Sequence]()
        self._waiting: list[Sequence] = []
        self._reading: Sequence | None = None
        self._decoding: list[Sequence] = []
        self._num_read = 0  # tokens of prompts since the last step, with the first drafts' nodes

    def add(self, request: Sequence) -> Sequence:
        """Let a request wait for its turn; it is its own handle.

        Raises:
            RequestError: for one that was added before, to this scheduler or another.
        """
        if request.is_added:
            raise RequestError("this request was added to a scheduler before: make another one of its prompt")
        request.is_added = True
        self._arrived.append(request)
        return request

    def cancel(self, request: Sequence) -> None:
        """End a request before the next pass; one that has ended stays as it is."""
        self._cancelled.append(request)

    @property
    def num_active(self) -> int:
        """Requests in the cache."""
        return len(self._decoding) + (self._reading is not None)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._arrived) + len(self._waiting)

    def advance(self) -> StepRecord | None:
        """One pass, or the end of requests without one; None: nothing to do now."""
        self._read_notes()
        if ended := self._take_ended():
            return ended
        if self._reading is None and self._waiting and self._has_room(self._waiting[0]):
            self._tell_of_those_to_come()
            self._reading = self._waiting.pop(0)
            begin(self._reading, self._target, self._contexts)
            if ended := self._take_ended():
                return ended
        if self._reading is not None:
            record = self._read(self._reading)
            if record is not None:
                return record
        if not self._decoding:
            return None
        self._num_read = 0
        return self._step(self._decoding)

    def close(self) -> StepRecord | None:
        """Cancel whatever is under way or waits."""
        self._read_notes()
        self._cancelled.extend(self._known())
        self._read_notes()
        return self._take_ended()

    def _read(self, request: Sequence) -> StepRecord | None:
        """Read one chunk of the prompt, or take the first step.

        Return None if the decoding requests have waited long enough since their last step.
        """
        chunk, size = next_chunk(request, self._target), self._target.shapes.chunk
        num_tokens = max(len(chunk) or len(request.trunk) + 1, size // _MOST_PASSES)
        if self._num_read and self._num_read + num_tokens > size * self._num_chunks():
            return None
        if chunk:
            record = read(self._batch([request]), chunk)
            self._drop(record)
        else:
            self._reading = None
            is_waited_for = len(self._decoding) >= _CROWD
            self._decoding.append(request)
            record = self._step([request], is_waited_for)
            if request.row is not None and self._contexts.prefixes is not None:
                self._contexts.prefixes.save(request.row, request.tokens)
        self._num_read += max(num_tokens, record.width)  # which has the first draft's nodes too
        return record

    def _num_chunks(self) -> float:
        """The chunks to read before the next step: those that decode and those that read wait for one another."""
        if not self._decoding:
            return math.inf
        num_reading = 1 + min(len(self._waiting), self._max_batch_size - self.num_active)
        return min(_MOST_CHUNKS, max(1, num_reading // len(self._decoding)))

    def _step(self, requests: ReadOnly[Sequence], is_waited_for: bool = False) -> StepRecord:
        record = step(self._batch(list(requests), is_waited_for))
        self._drop(record)
        return record

    def _batch(self, requests: ReadOnly[Sequence], is_waited_for: bool = False) -> Batch:
        return Batch(self._target, requests, self._fallback, self._flags_ties, self._contexts, is_waited_for)

    def _has_room(self, request: Sequence) -> bool:
        """Return True if the cache may hold another request: by its count, and by the memory it will need."""
        if self.num_active >= self._max_batch_size:
            return False
        own = None if request.context is None else request.context.row
        while True:
            capacities = [row.capacity for row in self._target.rows if row is not own]
            if not capacities or self._max_cache_bytes is None:
                return True
            if self._target.backend.cache_bytes([*capacities, request.capacity]) <= self._max_cache_bytes:
                return True
            if self._target.backend.trim():  # a long text that has left may have made all rows long
                continue
            if not self._contexts.drop_oldest(but=request.context):
                return False

    def _tell_of_those_to_come(self) -> None:
        """Tell the backend of the rows that will be open together, as far as there is memory for them."""
        backend, num_coming = self._target.backend, self._max_batch_size - self.num_active
        capacities = [row.capacity for row in self._target.rows]
        least = len(capacities) + 1  # the next has room
        capacities += [request.capacity for request in self._waiting[:num_coming]]
        most = float("inf") if self._max_cache_bytes is None else self._max_cache_bytes
        while len(capacities) > least and backend.cache_bytes(capacities) > most:
            capacities.pop()
        if backend.cache_bytes(capacities):  # not before a row has shown what a token takes
            backend.expect(capacities)

    def _known(self) -> list[Sequence]:
        return [*self._decoding, *([self._reading] if self._reading else []), *self._waiting]

    def _read_notes(self) -> None:
        """Take over what other threads have asked for."""
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.is_finished:
                request.finish_reason = "cancelled"

    def _take_ended(self) -> StepRecord | None:
        """Let requests leave that have ended otherwise than by a step."""
        ended = [request for request in self._known() if request.is_finished]
        if not ended:
            return None
        row_bytes = leave(ended, self._target, self._contexts)
        outcomes = [Outcome(each, finish_reason=each.finish_reason, error=each.error) for each in ended]
        record = StepRecord("none", tuple(outcomes), row_bytes=row_bytes)
        self._drop(record)
        for outcome in outcomes:
            outcome.request.stats.note(record, outcome)
        return record

    def _drop(self, record: StepRecord) -> None:
        """Forget the requests that a record says have ended."""
        ended = {id(outcome.request) for outcome in record.outcomes if outcome.finish_reason is not None}
        self._decoding = [request for request in self._decoding if id(request) not in ended]
        self._waiting = [request for request in self._waiting if id(request) not in ended]
        if id(self._reading) in ended:
            self._reading = None
