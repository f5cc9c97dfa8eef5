"""The processes that decode together, as a star: rank 0 leads, and every other rank hears from it alone.

Messages are pickled and go by gloo, beside whatever the model's own layers send. Whoever waits for an answer waits for
a limited time; whoever waits for a command, as long as it takes.
"""

import pickle
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist

from specdec.errors import ModelError, in_one_line

_HEAD = 4096  # bytes that a message is sent in, with its length, unless it is longer
_LENGTH = 8  # bytes
_FOREVER = timedelta(days=365)
_FAULT = 1024  # bytes of a rank's last words
_FAULT_TAG = 1
_SECONDS_TO_SAY_WHY = timedelta(seconds=0.5)
_CLOSED = re.compile("(?i)closed by peer|reset by peer|broken pipe")  # as gloo says it
_OF_TALK = re.compile(f"{_CLOSED.pattern}|gloo|nccl|timed out|timeout")


class Ranks:
    """A process's place in the group, made on every rank at once.

    Args:
        seconds: that rank 0 waits for another at most.

    Attributes:
        rank, size: the process's own number, and how many there are.
        seconds: that rank 0 has spent with messages so far, waiting for answers included.
        lock: held from a command to its last answer, since several threads may decode.

    Raises:
        ModelError: without a process group.
    """

    def __init__(self, seconds: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ModelError(
                "there is no process group: start with torchrun and call torch.distributed.init_process_group() first"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._limit = timedelta(seconds=seconds)
        self._group = dist.new_group(backend="gloo", timeout=self._limit)
        self.lock = RLock()
        self.seconds = 0.0
        self._has_ended = False
        self._num_keys = 0
        self._left: list[tuple[object, ...]] = []
        self._last_words: dict[int, tuple[torch.Tensor, Any]] = {}
        if self.leads:
            for rank in self.others:
                said = torch.zeros(_FAULT, dtype=torch.uint8)
                self._last_words[rank] = said, dist.irecv(said, rank, self._group, _FAULT_TAG)

    @property
    def leads(self) -> bool:
        """True on rank 0."""
        return not self.rank

    @property
    def others(self) -> Sequence[int]:
        """The other ranks, as rank 0 sees them."""
        return range(1, self.size)

    def new_key(self) -> int:
        """A number that no other part has."""
        self._num_keys += 1
        return self._num_keys

    @property
    def has_ended(self) -> bool:
        """True once a rank has gone, or may have heard what rank 0 has not done: nothing is decoded any more."""
        return self._has_ended

    def end(self) -> None:
        """Tell the others nothing more; they end with this process."""
        self._has_ended = True

    def order(self, *order: object) -> None:
        """Tell the others what to do, and before it what was left for later.

        Raises:
            ModelError: as below.
        """
        while self._left:
            self.tell(self._left.pop(0))
        self.tell(order)

    def leave(self, *order: object) -> None:
        """Leave an order for later: who lets go of an object may be in the middle of another talk."""
        self._left.append(order)

    def tell(self, message: object, besides: int = 0) -> None:
        """Send a message from rank 0 to all others, ``besides`` one.

        Raises:
            ModelError: where one has gone, or doesn't take it in time.
        """
        if self._has_ended:
            raise ModelError("a rank has ended, and nothing more is decoded: start all again")
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for rank in self.others:
            if rank != besides:
                self._guarded(rank, partial(self._send, data, rank, self._limit))

    def hear(self) -> Any:
        """The next message from rank 0, however long that takes.

        Raises:
            ModelError: where rank 0 has gone.
        """
        with self._ending_with_rank_0():
            return self._receive(0, _FOREVER)

    def answer(self, answer: object) -> None:
        """Send an answer to rank 0, whenever that wants it.

        Raises:
            ModelError: where rank 0 has gone.
        """
        with self._ending_with_rank_0():
            self._send(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL), 0, _FOREVER)

    @contextmanager
    def _ending_with_rank_0(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ModelError(f"rank 0 has ended, and rank {self.rank} with it") from error

    def answers(self, patience: float = 1.0) -> list[Any]:
        """The answers of all other ranks, in their order.

        Args:
            patience: times the limit that an answer may take.

        Raises:
            ModelError: where one has gone, or doesn't answer in time.
        """
        return [self.answer_of(rank, patience) for rank in self.others]

    def answer_of(self, rank: int, patience: float = 1.0) -> Any:
        """The answer of one rank.

        Raises:
            ModelError: as above.
        """
        return self._guarded(rank, partial(self._receive, rank, patience * self._limit))

    def dismiss(self) -> None:
        """Let the others go, as far as they are still there."""
        if not self._has_ended:
            with suppress(ModelError):
                self.tell(("dismiss", 0))
        self._has_ended = True

    def fail(self, error: BaseException) -> None:
        """Tell rank 0 why this one ends, if it is still there."""
        said = torch.zeros(_FAULT, dtype=torch.uint8)
        text = in_one_line(error).encode()[: _FAULT - 1]
        said[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        with suppress(RuntimeError):
            _done(dist.isend(said, 0, self._group, _FAULT_TAG), _SECONDS_TO_SAY_WHY)

    def blame(self, error: Exception, suspect: int | None = None) -> Exception:
        """The rank behind an error of talk on rank 0, as an error that names it; any other error as it is.

        gloo closes all connections once a wait was in vain, so that nobody is asked before talk has failed.

        Args:
            suspect: the rank that was talked to.
        """
        if self._has_ended or not (isinstance(error, RuntimeError) and _OF_TALK.search(str(error))):
            return error
        for rank in sorted(self.others, key=lambda rank: rank != suspect):
            if (why := self._end_of(rank)) is not None:
                self._has_ended = True
                return ModelError(f"rank {rank} has ended{why}: nothing more is decoded; start all again")
        self._has_ended = True
        suspect = 1 if self.size == 2 else suspect  # in the model's layers all ranks talk at once
        who, seconds = "a rank" if suspect is None else f"rank {suspect}", self._limit.total_seconds()
        return ModelError(
            f"{who} doesn't answer within {seconds:g} s: nothing more is decoded; start all again, with a longer "
            "timeout where passes take that long"
        )

    def _end_of(self, rank: int) -> str | None:
        """The last words of a rank that has ended, perhaps none; None for one that hasn't."""
        said, work = self._last_words[rank]
        try:
            work.wait(_SECONDS_TO_SAY_WHY)
        except RuntimeError as error:
            return "" if _CLOSED.search(str(error)) else None
        return f" ({bytes(said.tolist()).rstrip(bytes(1)).decode(errors='replace')})"

    def _guarded(self, rank: int, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return act()
        except RuntimeError as error:
            raise self.blame(error, rank) from error
        finally:
            self.seconds += time.perf_counter() - began

    def _send(self, data: bytes, rank: int, limit: timedelta) -> None:
        head = bytearray(_HEAD)
        head[:_LENGTH] = len(data).to_bytes(_LENGTH, "little")
        in_head = data[: _HEAD - _LENGTH]
        head[_LENGTH : _LENGTH + len(in_head)] = in_head
        self._send_bytes(head, rank, limit)
        if rest := data[len(in_head) :]:
            self._send_bytes(bytearray(rest), rank, limit)

    def _send_bytes(self, data: bytearray, rank: int, limit: timedelta) -> None:
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        _done(dist.isend(tensor, rank, self._group), limit)

    def _receive(self, rank: int, limit: timedelta) -> Any:
        head = self._receive_bytes(_HEAD, rank, limit)
        length = int.from_bytes(head[:_LENGTH], "little")
        data = head[_LENGTH : _LENGTH + length]
        if (rest := length - len(data)) > 0:
            data += self._receive_bytes(rest, rank, limit)
        return pickle.loads(data)

    def _receive_bytes(self, size: int, rank: int, limit: timedelta) -> bytearray:
        data = bytearray(size)
        _done(dist.irecv(torch.frombuffer(data, dtype=torch.uint8), rank, self._group), limit)
        return data


def _done(work: Any, limit: timedelta) -> None:
    """Wait for a message to have gone or come; RuntimeError where it hasn't in time."""
    work.wait(limit)
