"""Two threads for parsing and encoding bodies, so that a small body never waits for a large one."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specdec.apps.serving.requests import RequestParser

_LARGE = 32 << 10  # bytes of the largest small body, whose text takes about 50 ms to encode

Value = TypeVar("Value")


class BodyThreads:
    """Two threads besides the event loop, one for small bodies and one for large ones.

    Args:
        small, large: each thread's own parser.
    """

    def __init__(self, small: RequestParser, large: RequestParser) -> None:
        self._threads = [
            (parser, ThreadPoolExecutor(1, f"specdec-{name}")) for name, parser in (("small", small), ("large", large))
        ]

    def run(self, num_bytes: float, work: Callable[[RequestParser], Value]) -> asyncio.Future[Value]:
        """Run work in the thread for a body of ``num_bytes``; called on the event loop."""
        parser, executor = self._threads[num_bytes > _LARGE]
        return asyncio.wrap_future(executor.submit(work, parser))

    def close(self) -> None:
        """End both threads after their current work."""
        for _, executor in self._threads:
            executor.shutdown(cancel_futures=True)
