"""Admission: as many texts as the batch and the queue hold, and none once the server shuts down."""

import time
from collections import deque

from specdec.serving.errors import ApiError, busy

_MOST_REMEMBERED = 32  # finished requests, by which the queue's pace is judged
_LONGEST = 60.0  # seconds that anyone is told to wait


class Place:
    """A request's place, until it leaves."""

    def __init__(self, admission: "Admission", num_texts: int) -> None:
        self._admission, self._num_texts = admission, num_texts

    def leave(self, has_finished: bool) -> None:
        """Make room for others, once; a request that ``has_finished`` counts for the queue's pace."""
        self._admission.take_back(self._num_texts, has_finished)
        self._num_texts = 0


class Admission:
    """Counts the texts that were let in and have not ended; used on the event loop alone.

    Attributes:
        is_closed: the server shuts down.
    """

    def __init__(self, max_batch_size: int, max_queue: int) -> None:
        self._max_batch_size, self._most = max_batch_size, max_batch_size + max_queue
        self._num_texts = 0
        self._finished = deque[tuple[float, int]](maxlen=_MOST_REMEMBERED)
        self.is_closed = False

    @property
    def num_texts(self) -> int:
        """Texts that were let in and have not ended."""
        return self._num_texts

    @property
    def num_waiting(self) -> int:
        """Texts beyond those that the batch holds."""
        return max(0, self._num_texts - self._max_batch_size)

    def enter(self, num_texts: int) -> Place:
        """Let a request in.

        Raises:
            ApiError: where it is to come later, or to go elsewhere.
        """
        if self.is_closed:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": "10"})
        if num_texts > self._most:
            message = f"The request asks for {num_texts} texts, and this server holds {self._most}."
            raise ApiError(400, message, "n", "invalid_value")
        if self._num_texts + num_texts > self._most:
            raise self.busy(f"The queue is full: {self.num_waiting} texts wait.")
        self._num_texts += num_texts
        return Place(self, num_texts)

    def take_back(self, num_texts: int, has_finished: bool) -> None:
        """Take a request's texts out."""
        self._num_texts -= num_texts
        if has_finished and num_texts:
            self._finished.append((time.monotonic(), num_texts))

    def busy(self, message: str) -> ApiError:
        """A refusal for now, with the time that the queue takes at its present pace."""
        seconds = 1.0
        if len(self._finished) > 1:
            passed = self._finished[-1][0] - self._finished[0][0]
            seconds = passed / sum(count for _, count in [*self._finished][1:]) * max(1, self.num_waiting)
        return busy(message, min(_LONGEST, seconds))
