"""Counts the pages of a mapped file that are read into memory, by this thread's page faults."""

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not Linux: nothing is counted, and the system takes pages back when it needs them

    def _num_faults() -> int:
        return 0
else:

    def _num_faults() -> int:
        return getrusage(RUSAGE_THREAD).ru_minflt


_MOST_FAULTS = 160  # Linux maps up to 64 kB around each by default: 10 MB


class Pages:
    """The page faults between ``begin`` and ``end``; counters of resident memory would lag."""

    def __init__(self) -> None:
        self._num_faults = self._before = 0

    def begin(self) -> None:
        """Start to count."""
        self._before = _num_faults()

    def end(self) -> bool:
        """Stop counting; return True if enough pages were read since the last release to release them."""
        self._num_faults += _num_faults() - self._before
        if self._num_faults <= _MOST_FAULTS:
            return False
        self._num_faults = 0
        return True
