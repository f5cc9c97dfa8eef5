"""Run files: a comparison as JSON Lines, first the plan, then each run; used to resume, merge and report."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from specdec.apps.comparison.runs import ComparisonPlan, Run
from specdec.errors import RequestError, shortened


class RunFile:
    """A file to which runs are appended; runs that it has already are loaded as ``runs``.

    Raises:
        RequestError: the file belongs to another comparison; the message has the first difference.
    """

    def __init__(self, path: Path, plan: ComparisonPlan) -> None:
        self.runs: list[Run] = []
        if path.exists() and path.stat().st_size:
            before, self.runs = read(path)
            _check_same(plan, before, path)
        fresh = path.with_name(path.name + ".new")  # a crash during the write leaves the old file intact
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.writelines(line.model_dump_json() + "\n" for line in (plan, *self.runs))
            fresh.replace(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"run file {path} can't be written: {error.strerror}") from error

    def add(self, run: Run) -> None:
        """Append a run and flush."""
        self.runs.append(run)
        self._file.write(run.model_dump_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def check_run_file(path: Path) -> None:
    """Raises RequestError if the file exists and isn't a run file."""
    if path.exists() and path.stat().st_size:
        read(path)


def read(path: Path) -> tuple[ComparisonPlan, list[Run]]:
    """Read a file's plan and runs; an incomplete last line is skipped.

    Raises:
        RequestError: the file can't be read or isn't a run file.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would split at U+2028 as well
    except OSError as error:
        raise RequestError(f"run file {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not a run file: it is not UTF-8 text") from error
    try:
        plan = ComparisonPlan.model_validate_json(lines[0] if lines else "")
    except ValidationError:
        raise RequestError(
            f"{path} is not a run file: the first line isn't a plan of this version's `specdec compare --run`"
        ) from None
    runs = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            runs.append(Run.model_validate_json(line))
        except ValidationError:
            if number < len(lines):
                raise RequestError(f"run file {path}: line {number} is not a run") from None
    return plan, runs


def merge(paths: Sequence[Path]) -> tuple[ComparisonPlan, list[Run]]:
    """Merge files of one comparison; each file's repeats follow those of the file before.

    Raises:
        RequestError: the files belong to several comparisons; the message has the first difference.
    """
    if len(set(map(Path.resolve, paths))) < len(paths):
        raise RequestError("a run file is listed twice")
    first, runs = read(paths[0])
    for path in paths[1:]:
        plan, more = read(path)
        _check_same(first, plan, path)
        start = 1 + max((run.repeat for run in runs), default=-1)
        runs += [run.model_copy(update={"repeat": run.repeat + start}) for run in more]
    repeats = max(first.repeats, 1 + max((run.repeat for run in runs), default=-1))
    return first.model_copy(update={"repeats": repeats}), runs


def _check_same(plan: ComparisonPlan, other: ComparisonPlan, path: Path) -> None:
    for name in ComparisonPlan.model_fields:
        ours, theirs = getattr(plan, name), getattr(other, name)
        if name not in {"repeats", "inexact"} and ours != theirs:
            values = f"its {name} is {shortened(str(theirs))}, not {shortened(str(ours))}"
            raise RequestError(f"run file {path} belongs to another comparison: {values}; choose another file")
