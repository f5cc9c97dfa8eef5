"""Huge pages for what a process has in memory, such as a model's weights.

A step reads all weights. In pages of 4 KiB, which Linux gives a process that doesn't ask for others, up to a fifth of a
step on a CPU goes to the translation of addresses. Engines allocate packed weights themselves and don't say where, so
all large mappings that are full of memory are collapsed into huge pages in place (``MADV_COLLAPSE``, Linux 6.1).
"""

import ctypes
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE
_HUGE = 2**21  # bytes of a huge page
_PART = 8 * _HUGE  # of a mapping, collapsed by one call, which locks the process's mappings
_LEAST_SHARE = 0.9  # of a mapping in memory: an empty page would take memory in a huge one
_BYTES_PER_SECOND = 400e6  # that one core collapses
_NICENESS = 19  # the lowest priority
_FIRST_LOOK = 1.0  # seconds of passes
_NEXT_LOOK = 1.5  # times the passes' seconds at the last one, at least
# Passes take this many times as long as collapsing before it begins. They get about an eighth shorter by it, so its
# lack has cost as much time as it by then: a short run has no cost, and any other at most twice the smaller cost.
_MIN_RATIO = 8.0
# An entry of smaps: writable, private, of no file.
_ENTRY = re.compile(
    r"^(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \w+ \w+:\w+ 0 *(?:\[(?:heap|anon).*)?\n"
    r"(?:[A-Z].*\n)*?Size: +(?P<size>\d+) kB\n"
    r"(?:[A-Z].*\n)*?Anonymous: +(?P<anonymous>\d+) kB\n"
    r"(?:[A-Z].*\n)*?AnonHugePages: +(?P<huge>\d+) kB\n",
    re.MULTILINE,
)
_MAPS = Path("/proc/self/smaps")


@dataclass(frozen=True, slots=True)
class SmallPages:
    """A mapping to collapse.

    Attributes:
        begin, end: addresses at borders of huge pages.
        num_bytes: those between them that are not in huge pages yet.
    """

    begin: int
    end: int
    num_bytes: int


class HugePages:
    """Collapses the process's memory, in a thread, once passes have taken so long that it is worthwhile.

    Memory that was filled later, such as weights packed for another request, is collapsed later by the same rule. What
    is in huge pages already, through another generator of the process too, is left alone: the system's own count of
    each mapping is the only state that generators share.

    Args:
        find: returns the mappings to collapse.
        collapse: collapses one.
    """

    def __init__(
        self,
        find: Callable[[], Iterable[SmallPages]] | None = None,
        collapse: Callable[[SmallPages], object] | None = None,
    ) -> None:
        self._find, self._collapse = find or small_pages, collapse or collapse_pages
        self._pass_seconds = 0.0
        self._collapse_seconds = 0.0  # of a core
        self._next_look = _FIRST_LOOK

    def add_pass_seconds(self, seconds: float) -> None:
        """Note the time of a pass."""
        self._pass_seconds += seconds
        if self._pass_seconds >= self._next_look:
            self._next_look = math.inf  # until the thread ends
            with suppress(RuntimeError):  # the system has no room for a thread
                threading.Thread(target=self._look, args=(self._pass_seconds,), name="huge pages", daemon=True).start()

    def _look(self, seconds: float) -> None:
        """Collapse memory if that is worthwhile after ``seconds`` of passes; decide when to look again."""
        _lower_priority()
        found = list(self._find())
        cost = self._collapse_seconds + sum(pages.num_bytes for pages in found) / _BYTES_PER_SECOND
        worthwhile_at = _MIN_RATIO * cost
        if found and worthwhile_at <= seconds:
            for pages in found:
                self._collapse(pages)
            self._collapse_seconds = cost
        self._next_look = max(worthwhile_at, _NEXT_LOOK * seconds)


def _lower_priority() -> None:
    """Give this thread what no other needs: collapsing is of use later, and would take a core from the passes."""
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        with suppress(OSError):  # of a sandbox that allows none
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def small_pages() -> list[SmallPages]:
    """Return the process's large mappings that are full of memory and not in huge pages; none on other systems."""
    with suppress(OSError, MemoryError):
        return list(small_pages_of(_MAPS.read_text(encoding="ascii", errors="replace")))
    return []


def small_pages_of(maps: str) -> Iterator[SmallPages]:
    """Yield the mappings to collapse among the entries of ``/proc/PID/smaps``."""
    for found in _ENTRY.finditer(maps):
        size, anonymous, huge = (1024 * int(found[name]) for name in ("size", "anonymous", "huge"))
        begin, end = -(-int(found["begin"], 16) // _HUGE) * _HUGE, int(found["end"], 16) // _HUGE * _HUGE
        if anonymous >= _LEAST_SHARE * size and end - begin > huge:
            yield SmallPages(begin, end, end - begin - huge)


def collapse_pages(pages: SmallPages) -> int:
    """Collapse a mapping into huge pages, which changes no content; return the bytes that are in huge pages now.

    Returns 0 where the system can't.
    """
    collapsed = 0
    with suppress(OSError, TypeError, AttributeError):  # of systems other than Linux
        advise = ctypes.CDLL(None).madvise
        for start in range(pages.begin, pages.end, _PART):
            size = min(_PART, pages.end - start)
            collapsed += 0 if advise(ctypes.c_void_p(start), ctypes.c_size_t(size), _COLLAPSE) else size
    return collapsed
