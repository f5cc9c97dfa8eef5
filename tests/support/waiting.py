"""Waiting for another thread or process: how long that takes is the machine's affair, and only a hang is a failure."""

import time
from collections.abc import Callable

_OF_A_HANG = 300.0  # seconds


def soon(holds: Callable[[], object]) -> bool:
    """Return True once something holds, and False if it doesn't within five minutes."""
    end = time.monotonic() + _OF_A_HANG
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
