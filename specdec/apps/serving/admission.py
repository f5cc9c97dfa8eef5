"""Admission control: limits the number of texts to the batch and the queue, and refuses all during shutdown."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

from specdec.apps.serving.errors import ApiError, busy

_MOST_REMEMBERED = 32  # finished requests from which the queue's rate is estimated
_MOST_INPUT_BYTES = 2 << 30  # of the images and recordings of all requests, as their processor encodes them
_LONGEST = 60.0  # largest Retry-After, in seconds

Leave = Callable[[bool], None]  # releases a place; with True, the request counts for the queue's rate


class Admission:
    """Counts the admitted texts that have not ended; used on the event loop only.

    Attributes:
        num_texts: admitted texts that have not ended.
        num_input_bytes: of the images and recordings of admitted requests.
        is_closed: True once the server shuts down.
    """

    def __init__(self, max_batch_size: int, max_queue: int) -> None:
        self._max_batch_size, self._most = max_batch_size, max_batch_size + max_queue
        self.num_texts, self.num_input_bytes = 0, 0
        self._finished = deque[tuple[float, int]](maxlen=_MOST_REMEMBERED)
        self.is_closed = False

    @property
    def num_waiting(self) -> int:
        """Admitted texts beyond the batch size."""
        return max(0, self.num_texts - self._max_batch_size)

    def enter(self, num_texts: int) -> Leave:
        """Admit a request; return the function to call once at its end.

        Raises:
            ApiError: if the queue is full or the server shuts down.
        """
        if self.is_closed:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": "10"})
        if num_texts > self._most:
            message = f"The request asks for {num_texts} texts, and this server holds {self._most}."
            raise ApiError(400, message, "n", "invalid_value")
        if self.num_texts + num_texts > self._most:
            raise self.busy(f"The queue is full: {self.num_waiting} texts wait.")
        self.num_texts += num_texts
        return partial(self._leave, num_texts)

    def with_inputs(self, leave: Leave, num_bytes: int) -> Leave:
        """Admit the images and recordings of an admitted request; return the function to call instead of ``leave``.

        Raises:
            ApiError: if those of other requests leave no room.
        """
        if self.num_input_bytes and self.num_input_bytes + num_bytes > _MOST_INPUT_BYTES:
            raise self.busy("The images and recordings of other requests take all memory for them.")
        self.num_input_bytes += num_bytes

        def leave_both(has_finished: bool) -> None:
            self.num_input_bytes -= num_bytes
            leave(has_finished)

        return leave_both

    def _leave(self, num_texts: int, has_finished: bool) -> None:
        assert self.num_texts >= num_texts, "a place is left once"
        self.num_texts -= num_texts
        if has_finished:
            self._finished.append((time.monotonic(), num_texts))

    def busy(self, message: str) -> ApiError:
        """Return a 'try again later' error, with the time that the queue takes at its current rate."""
        seconds = 1.0
        if len(self._finished) > 1:
            passed = self._finished[-1][0] - self._finished[0][0]
            seconds = passed / sum(count for _, count in [*self._finished][1:]) * max(1, self.num_waiting)
        return busy(message, min(_LONGEST, seconds))
