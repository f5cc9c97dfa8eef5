"""Huge pages for what a process has in memory, such as a model's weights.

A step reads all weights. In pages of 4 KiB, which Linux gives a process that doesn't ask for others, up to a fifth of a
step on a CPU goes to the translation of addresses. Engines allocate packed weights themselves and don't say where, so
all large mappings that are full of memory are collapsed into huge pages in place (``MADV_COLLAPSE``, Linux 6.1).
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE
_HUGE = 2**21  # bytes of a huge page
_PART = 8 * _HUGE  # of a mapping, collapsed by one call, which locks the process's mappings
_LEAST_SHARE = 0.9  # of a mapping in memory: an empty page would take memory in a huge one
_SECONDS = 2.0  # of passes, about as long as collapsing takes
# An entry of smaps: writable, private, of no file.
_ENTRY = re.compile(
    r"^(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \w+ \w+:\w+ 0 *(?:\[(?:heap|anon).*)?\n"
    r"(?:[A-Z].*\n)*?Size: +(?P<size>\d+) kB\n"
    r"(?:[A-Z].*\n)*?Anonymous: +(?P<anonymous>\d+) kB\n"
    r"(?:[A-Z].*\n)*?AnonHugePages: +(?P<huge>\d+) kB\n",
    re.MULTILINE,
)
_MAPS = Path("/proc/self/smaps")


class HugePages:
    """Collapses the process's memory once, in a thread, after passes have taken so long that it pays.

    Args:
        collapse: does it.
    """

    def __init__(self, collapse: Callable[[], object] | None = None) -> None:
        self._collapse = collapse or collapse_memory
        self._left = _SECONDS

    def spent(self, seconds: float) -> None:
        """Note the time of a pass."""
        if self._left > 0:
            self._left -= seconds
            if self._left <= 0:
                threading.Thread(target=self._collapse, name="huge pages", daemon=True).start()


def collapse_memory() -> int:
    """Collapse the process's large mappings into huge pages where they are full; return the bytes that took it.

    Does nothing where the system can't.
    """
    taken = 0
    with suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        for begin, end in mappings(_MAPS.read_text(encoding="ascii", errors="replace")):
            for start in range(begin, end, _PART):
                size = min(_PART, end - start)
                taken += 0 if advise(ctypes.c_void_p(start), ctypes.c_size_t(size), _COLLAPSE) else size
    return taken


def mappings(maps: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last address of each mapping to collapse, at borders of huge pages."""
    for found in _ENTRY.finditer(maps):
        size, anonymous, huge = (int(found[name]) for name in ("size", "anonymous", "huge"))
        begin, end = -(-int(found["begin"], 16) // _HUGE) * _HUGE, int(found["end"], 16) // _HUGE * _HUGE
        if anonymous >= _LEAST_SHARE * size and huge < size / 2 and begin < end:
            yield begin, end
