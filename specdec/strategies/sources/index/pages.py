"""The pages of a mapped file that reading has brought into memory, as this thread's page faults tell."""

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not Linux: nothing is counted, and the system takes pages back when it needs them

    def _num_faults() -> int:
        return 0
else:

    def _num_faults() -> int:
        return getrusage(RUSAGE_THREAD).ru_minflt


_MOST_FAULTS = 160  # Linux maps up to 64 kB around each, where it isn't told otherwise: 10 MB


class Pages:
    """The faults of the reading between ``begin`` and ``end``; counters of resident memory lag."""

    def __init__(self) -> None:
        self._num_faults = self._before = 0

    def begin(self) -> None:
        """Reading begins."""
        self._before = _num_faults()

    def end(self) -> bool:
        """Reading is over; return True if so much was read since the last time that it should be let go."""
        self._num_faults += _num_faults() - self._before
        if self._num_faults <= _MOST_FAULTS:
            return False
        self._num_faults = 0
        return True
