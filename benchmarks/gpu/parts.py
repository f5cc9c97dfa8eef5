"""Parts of a measurement that must end in time and lose nothing: each is guarded, and written when it ends."""

import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Findings = dict[str, Any]
_MOST_PRINTED = 1500  # characters of a part, so that a process whose files are lost has shown its figures


@dataclass
class Report:
    """The findings of all parts so far, in ``gpu.json`` of a folder; ``failures.txt`` has full tracebacks.

    Attributes:
        seconds: time for all parts, counted from the first part of the first process that wrote to the folder.
        until: the clock's time at which the current part ends; cases that begin later are left out.
    """

    folder: Path
    seconds: float
    found: Findings = field(default_factory=dict)
    until: float = 0.0
    clock: Callable[[], float] = time.time  # a process that continues another's run has the same clock

    @classmethod
    def opened(cls, folder: Path, seconds: float) -> "Report":
        """Open a folder's report; parts that an earlier process began are not begun again."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "gpu.json"
        report = cls(folder, seconds)
        report.found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"began": report.clock()}
        return report

    @property
    def left(self) -> float:
        """Seconds until the current part has to end."""
        return self.until - self.clock()

    def part(self, name: str, seconds: float, run: Callable[["Report", Findings], object]) -> None:
        """Run a part once, within ``seconds``, unless the time for all parts is over."""
        end = self.found["began"] + self.seconds
        began = self.clock()
        if name in self.found or began >= end:
            return
        self.until = min(began + seconds, end)
        findings: Findings = {}
        self.found[name] = findings
        self.write()  # so that a process that takes over doesn't die of the same part
        self.group(findings, run)
        findings["seconds"] = round(self.clock() - began, 1)
        print(f"{name}: {json.dumps(findings, default=str)[:_MOST_PRINTED]}", file=sys.stderr, flush=True)
        self.write()

    def group(self, findings: Findings, run: Callable[["Report", Findings], object]) -> None:
        """Run several cases that note their own findings; an error outside of these is noted as ``failed``."""
        if self.attempt(findings, "failed", partial(run, self, findings)):
            del findings["failed"]

    def attempt(self, findings: Findings, key: str, run: Callable[[], Any]) -> bool:
        """Note what a case returns, or the error that it raises; returns True if it ran without one."""
        if self.left <= 0:
            findings[key] = "not run: out of time"
            return False
        try:
            findings[key] = run()
        except Exception as error:  # whatever fails, the other cases go on
            findings[key] = self.failure(key, error)
            return False
        finally:
            self.write()
        return True

    def failure(self, key: str, error: Exception) -> str:
        """Write an error's traceback, and return the error in short."""
        with (self.folder / "failures.txt").open("a", encoding="utf-8") as file:
            file.write(f"== {key}\n{''.join(traceback.format_exception(error))}\n")
        return f"{type(error).__name__}: {error}"[:400]

    def write(self) -> None:
        """Write everything that was found so far."""
        text = json.dumps(self.found, indent=1, default=str)
        (self.folder / "gpu.json").write_text(text, encoding="utf-8")
