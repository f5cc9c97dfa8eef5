"""Two lanes for what is done with bodies, parsing and encoding: a small one never waits for a large one."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_LARGE = 32 << 10  # bytes of a body, whose text takes about 50 ms to encode

Worker = TypeVar("Worker")
Value = TypeVar("Value")


class Lanes(Generic[Worker]):
    """Threads apart from the event loop, one for small bodies and one for large ones.

    Args:
        small, large: what each lane works with, which no other thread uses meanwhile.
    """

    def __init__(self, small: Worker, large: Worker) -> None:
        self._lanes = [
            (worker, ThreadPoolExecutor(1, f"specdec-{name}")) for name, worker in (("small", small), ("large", large))
        ]

    def run(self, num_bytes: int, work: Callable[[Worker], Value]) -> asyncio.Future[Value]:
        """Do work in the lane for a body of ``num_bytes``; call it on the event loop."""
        worker, executor = self._lanes[num_bytes > _LARGE]
        return asyncio.wrap_future(executor.submit(work, worker))

    def close(self) -> None:
        """End both threads, once what they have begun is done."""
        for _, executor in self._lanes:
            executor.shutdown(cancel_futures=True)
