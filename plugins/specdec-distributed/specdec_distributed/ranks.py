"""Messages between rank 0 and each of the other ranks.

Messages are pickled and sent by gloo, separately from the traffic of the model's own layers. A rank waits for a reply
up to the timeout, and for a command without limit.
"""

import pickle
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist

from specdec.errors import ModelError, in_one_line

_HEAD = 4096  # bytes of a message's first part, its length included; most messages have no second one
_LENGTH = 8  # bytes that hold the length
_FOREVER = timedelta(days=365)
_MEMBERSHIP = "_specdec_ranks"  # a model's attribute
_FAILURE = 1024  # bytes of a rank's failure report
_FAILURE_TAG = 1
_REPORT_TIMEOUT = timedelta(seconds=0.5)
_CLOSED = re.compile("(?i)closed by peer|reset by peer|broken pipe")  # gloo's wording
_IN_COMMUNICATION = re.compile(f"{_CLOSED.pattern}|gloo|nccl|timed out|timeout")


class Ranks:
    """A process's end of the group's connections; all ranks create it at the same time.

    Args:
        timeout: the longest that rank 0 waits for another rank, in seconds.

    Attributes:
        rank, size: the process's number, and the number of processes.
        seconds: the time that rank 0 has spent on messages, waiting for replies included.
        lock: held from a command to its last reply, since several threads may decode.

    Raises:
        ModelError: if there is no process group.
    """

    def __init__(self, timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ModelError(
                "there is no process group: start with torchrun and call torch.distributed.init_process_group() first"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._timeout = timedelta(seconds=timeout)
        self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self.lock = RLock()
        self.seconds = 0.0
        self._why_ended: str | None = None
        self._num_keys = 0
        self._deferred: list[tuple[object, ...]] = []
        self._reports: dict[int, tuple[torch.Tensor, Any]] = {}
        if self.leads:
            for rank in self.others:
                text = torch.zeros(_FAILURE, dtype=torch.uint8)
                self._reports[rank] = text, dist.irecv(text, rank, self._group, _FAILURE_TAG)

    @property
    def leads(self) -> bool:
        """True on rank 0."""
        return not self.rank

    @property
    def others(self) -> Sequence[int]:
        """The ranks other than 0."""
        return range(1, self.size)

    def new_key(self) -> int:
        """A number for a new worker or a retained stretch, the same on all ranks."""
        self._num_keys += 1
        return self._num_keys

    @property
    def has_ended(self) -> bool:
        """True once decoding is over: a rank has ended, or may have run a command that rank 0 hasn't."""
        return self._why_ended is not None

    def end(self, why: str = "decoding was interrupted") -> None:
        """Stop sending commands; the other ranks end with this process. A first reason stays."""
        self._why_ended = self._why_ended or why

    def command(self, *command: object) -> None:
        """Send deferred commands, then this one, from rank 0 to all others.

        Raises:
            ModelError: if a rank has ended, or doesn't receive the command within the timeout.
        """
        while self._deferred:
            self.broadcast(self._deferred.pop(0))
        self.broadcast(command)

    def defer(self, *command: object) -> None:
        """Send a command together with the next one, since a finaliser may run while messages are exchanged."""
        self._deferred.append(command)

    def broadcast(self, message: object, besides: int = 0) -> None:
        """Send a message from rank 0 to all others, or to all but ``besides``.

        Raises:
            ModelError: if a rank has ended, or doesn't receive the message within the timeout.
        """
        if self._why_ended is not None:
            raise ModelError(f"{self._why_ended}: decoding is over; restart all ranks")
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for rank in self.others:
            if rank != besides:
                self._guarded(rank, partial(self._send, data, rank, self._timeout))

    def receive(self) -> Any:
        """Wait for the next message from rank 0, without limit.

        Raises:
            ModelError: if rank 0 has ended.
        """
        with self._ending_with_rank_0():
            return self._receive(0, _FOREVER)

    def reply(self, reply: object) -> None:
        """Send a reply to rank 0, and wait until rank 0 receives it.

        Raises:
            ModelError: if rank 0 has ended.
        """
        with self._ending_with_rank_0():
            self._send(pickle.dumps(reply, pickle.HIGHEST_PROTOCOL), 0, _FOREVER)

    @contextmanager
    def _ending_with_rank_0(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ModelError(f"rank 0 has ended, and rank {self.rank} with it") from error

    def replies(self, patience: float = 1.0) -> list[Any]:
        """Receive a reply from each other rank, in order.

        Args:
            patience: the longest wait for a reply, as a multiple of the timeout.

        Raises:
            ModelError: if a rank has ended, or doesn't reply in time.
        """
        return [self.reply_of(rank, patience) for rank in self.others]

    def reply_of(self, rank: int, patience: float = 1.0) -> Any:
        """Receive a reply from one rank; ``patience`` and errors as in ``replies``."""
        return self._guarded(rank, partial(self._receive, rank, patience * self._timeout))

    def dismiss(self) -> None:
        """Let the other ranks leave their blocks, unless the group has ended."""
        if not self.has_ended:
            with suppress(ModelError):
                self.broadcast(("dismiss", 0))
        self.end("the group was dismissed")

    def report_failure(self, error: BaseException) -> None:
        """Send rank 0 the reason why this rank ends, if rank 0 still runs."""
        report = torch.zeros(_FAILURE, dtype=torch.uint8)
        text = in_one_line(error).encode()[: _FAILURE - 1]
        report[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        with suppress(RuntimeError):
            _wait(dist.isend(report, 0, self._group, _FAILURE_TAG), _REPORT_TIMEOUT)

    def diagnose(self, error: Exception, suspect: int | None = None) -> Exception:
        """Turn rank 0's communication error into a ModelError with the failed rank; return other errors unchanged.

        Failure reports are read only after a communication error: gloo closes all connections when a wait times out.

        Args:
            suspect: the rank that rank 0 was communicating with.
        """
        if self.has_ended or not (isinstance(error, RuntimeError) and _IN_COMMUNICATION.search(str(error))):
            return error
        for rank in sorted(self.others, key=lambda rank: rank != suspect):
            if (why := self._end_of(rank)) is not None:
                self.end(f"rank {rank} has ended{why}")
                return ModelError(f"{self._why_ended}: decoding is over; restart all ranks")
        suspect = 1 if self.size == 2 else suspect  # in the model's layers all ranks communicate at once
        who, seconds = "a rank" if suspect is None else f"rank {suspect}", self._timeout.total_seconds()
        self.end(f"{who} doesn't reply within {seconds:g} s")
        return ModelError(
            f"{self._why_ended}: decoding is over; restart all ranks, with a longer timeout if passes take that long"
        )

    def _end_of(self, rank: int) -> str | None:
        """The failure report of a rank that has ended, "" if it sent none; None if the rank still runs."""
        text, work = self._reports[rank]
        try:
            work.wait(_REPORT_TIMEOUT)
        except RuntimeError as error:
            return "" if _CLOSED.search(str(error)) else None
        return f" ({bytes(text.tolist()).rstrip(bytes(1)).decode(errors='replace')})"

    def _guarded(self, rank: int, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return act()
        except RuntimeError as error:
            raise self.diagnose(error, rank) from error
        finally:
            self.seconds += time.perf_counter() - began

    def _send(self, data: bytes, rank: int, timeout: timedelta) -> None:
        head = bytearray(_HEAD)
        head[:_LENGTH] = len(data).to_bytes(_LENGTH, "little")
        in_head = data[: _HEAD - _LENGTH]
        head[_LENGTH : _LENGTH + len(in_head)] = in_head
        self._send_bytes(head, rank, timeout)
        if rest := data[len(in_head) :]:
            self._send_bytes(bytearray(rest), rank, timeout)

    def _send_bytes(self, data: bytearray, rank: int, timeout: timedelta) -> None:
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        _wait(dist.isend(tensor, rank, self._group), timeout)

    def _receive(self, rank: int, timeout: timedelta) -> Any:
        head = self._receive_bytes(_HEAD, rank, timeout)
        length = int.from_bytes(head[:_LENGTH], "little")
        data = head[_LENGTH : _LENGTH + length]
        if (rest := length - len(data)) > 0:
            data += self._receive_bytes(rest, rank, timeout)
        return pickle.loads(data)

    def _receive_bytes(self, size: int, rank: int, timeout: timedelta) -> bytearray:
        data = bytearray(size)
        _wait(dist.irecv(torch.frombuffer(data, dtype=torch.uint8), rank, self._group), timeout)
        return data


def _wait(work: Any, timeout: timedelta) -> None:
    """Wait until a message is sent or received; RuntimeError after the timeout."""
    work.wait(timeout)


@dataclass(frozen=True, slots=True)
class _Membership:
    """A model's group, stored on the model. A copy of the model has none, so it pickles to None."""

    ranks: Ranks
    model: Any

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def ranks_of(model: object) -> Ranks | None:
    """Return the group with which a model decodes, on rank 0; None on other ranks and for models without a group."""
    member: _Membership | None = getattr(model, "__dict__", {}).get(_MEMBERSHIP)
    return member.ranks if member is not None and member.model is model else None


@contextmanager
def leading(model: Any, ranks: Ranks) -> Iterator[None]:
    """Set ``ranks_of(model)`` to ``ranks`` for the block; at its end, let the other ranks leave."""
    vars(model)[_MEMBERSHIP] = _Membership(ranks, model)
    try:
        yield
    finally:
        vars(model).pop(_MEMBERSHIP)
        ranks.dismiss()
