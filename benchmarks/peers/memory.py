"""Memory that a process has added since its model was loaded."""

import ctypes
import gc
from pathlib import Path
from typing import Any


class Memory:
    """Peak resident memory over that of the loaded model, in bytes; None on other systems than Linux.

    Reads the process ``model.pid`` if the model runs in another process.
    """

    def __init__(self, model: Any) -> None:
        for weight in model.parameters() if hasattr(model, "parameters") else ():
            weight.sum()  # reads it: a file that is mapped takes memory only then
        gc.collect()
        self._process = Path("/proc", str(getattr(model, "pid", "self")))
        self._base: int | None = None
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what loading has freed goes back
            (self._process / "clear_refs").write_text("5")  # the peak starts anew
            self._base = resident_bytes("VmRSS", self._process)
        except (OSError, AttributeError):
            return

    def peak_bytes(self) -> int | None:
        """The peak so far over the loaded model."""
        return None if self._base is None else max(0, resident_bytes("VmHWM", self._process) - self._base)

    def total_bytes(self) -> int | None:
        """The peak so far, with the model and all libraries."""
        return None if self._base is None else resident_bytes("VmHWM", self._process)


def resident_bytes(name: str, process: Path = Path("/proc/self")) -> int:
    """``VmRSS`` (current) or ``VmHWM`` (peak since the last reset)."""
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])
