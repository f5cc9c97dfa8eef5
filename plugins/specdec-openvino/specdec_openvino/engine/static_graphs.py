"""Decides when graphs with static shapes are compiled while requests decode, and compiles them in a thread.

Such a graph makes the passes of one size shorter. It takes a second or more to compile, and has the weights in memory
once more.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from specdec import ModelError
from specdec.errors import in_one_line
from specdec.machine.background import MIN_RATIO

Graph = TypeVar("Graph")

_SHARE_OF_MEMORY = 0.25  # of the free memory, for all graphs together


class StaticGraphs(Generic[Graph]):
    """Compiles a graph for one size of passes after another, each once its passes have taken long.

    The thread has the priority of all others: its memory allocator, the engine's locks and Python's would otherwise be
    held by a thread that a busy machine doesn't run. It isn't a daemon, since the interpreter must not end while the
    engine compiles, and waits for it at its exit.

    Args:
        sizes: numbers of tokens of passes.
        compiled: returns the graph of a size, or None if it can't replace the dynamic one; called in the thread.
        seconds: that a compile takes, as predicted.
        num_bytes: that a graph takes, as predicted.
        free_bytes: returns the bytes of free memory; None if they are unknown, and no graph is compiled then.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        compiled: Callable[[int], Graph | None],
        seconds: float,
        num_bytes: int,
        free_bytes: Callable[[], int | None],
    ) -> None:
        self._compiled, self._num_bytes, self._free_bytes = compiled, num_bytes, free_bytes
        self._worthwhile_at = MIN_RATIO * seconds
        self._seconds = dict.fromkeys(sizes, 0.0)  # of passes, for the sizes that may still get a graph
        self._num_graphs = 0
        self._thread: threading.Thread | None = None
        self._ready: Graph | None = None  # written by the thread
        self._is_closed = False

    def add_pass(self, num_tokens: int, seconds: float) -> Graph | None:
        """Note the time of a pass without a static graph; return a graph that has become ready, or None."""
        if num_tokens in self._seconds:
            self._seconds[num_tokens] += seconds
        if self._thread is not None:
            return None if self._thread.is_alive() else self._take()
        size = max(self._seconds, key=self._seconds.__getitem__, default=0)
        if size and self._seconds[size] >= self._worthwhile_at:
            self._begin(size)
        return None

    def close(self) -> None:
        """Begin no other compile, and drop the graph of one that has begun.

        This waits for no thread: the garbage collector may close a generator in any thread, also in one that holds a
        lock for which the compile waits.
        """
        self._is_closed = True
        self._seconds.clear()
        self._ready = None

    def wait(self) -> None:
        """Wait for a compile that has begun."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, size: int) -> None:
        """Compile a size's graph if all fit in memory; otherwise decide again after as many seconds."""
        free = self._free_bytes()
        if free is None or (self._num_graphs + 1) * self._num_bytes > _SHARE_OF_MEMORY * free:
            self._seconds = dict.fromkeys(self._seconds, 0.0)
            return
        del self._seconds[size]
        thread = threading.Thread(target=self._run, args=(size,), name="static shapes", daemon=False)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the system has no room for a thread
            self._seconds.clear()

    def _run(self, size: int) -> None:
        try:
            self._ready = self._compiled(size)
            if self._is_closed:  # after the graph was written, since ``close`` may run between any two lines
                self._ready = None
        except Exception as error:  # the engine's, of memory too
            reason = str(error) if isinstance(error, ModelError) else in_one_line(error)
            warnings.warn(
                f"no graph with static shapes for passes of {size} tokens: {reason}; passes stay as they are, and "
                "static_sizes=0 makes no such graphs",
                stacklevel=2,
            )

    def _take(self) -> Graph | None:
        """Return the graph of the thread, which has ended; without one, none is compiled any more."""
        graph, self._thread, self._ready = self._ready, None, None
        if graph is None:
            self._seconds.clear()
        else:
            self._num_graphs += 1
        return graph
