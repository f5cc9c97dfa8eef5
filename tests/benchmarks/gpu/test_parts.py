"""Parts of a measurement: a failure is noted and the rest goes on, and a process that died is continued."""

from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Findings, Report

NOTHING: list[int] = []


def failing(report: Report, found: Findings) -> None:
    report.attempt(found, "before", lambda: 1)
    report.attempt(found, "bad", lambda: NOTHING[0])
    raise ValueError("outside of any case")


def working(report: Report, found: Findings) -> None:
    report.attempt(found, "value", lambda: 2)


def test_failures_are_noted_with_their_tracebacks_and_the_rest_goes_on(tmp_path: Path) -> None:
    report = Report.opened(tmp_path, seconds=60.0)
    report.part("first", 60.0, failing)
    report.part("second", 60.0, working)
    found = Report.opened(tmp_path, seconds=60.0).found
    assert found["first"]["before"] == 1
    assert found["first"]["bad"] == "IndexError: list index out of range"
    assert found["first"]["failed"] == "ValueError: outside of any case"
    assert found["second"]["value"] == 2
    assert "failed" not in found["second"]
    assert (tmp_path / "failures.txt").read_text().count("Traceback (most recent call last)") == 2


def test_a_part_that_was_begun_is_not_begun_again(tmp_path: Path) -> None:
    class Died(BaseException):
        pass

    def dying(report: Report, found: Findings) -> None:
        raise Died

    begun: list[str] = []
    try:
        Report.opened(tmp_path, seconds=60.0).part("first", 60.0, dying)
    except Died:
        begun.append("died")
    continued = Report.opened(tmp_path, seconds=60.0)
    for name in ("first", "second"):
        continued.part(name, 60.0, working)
    assert begun == ["died"]
    assert "value" not in continued.found["first"]
    assert continued.found["second"]["value"] == 2


def test_cases_and_parts_that_would_begin_too_late_are_left_out(tmp_path: Path) -> None:
    now = [100.0]
    report = Report(tmp_path, 60.0, {"began": 100.0}, clock=lambda: now[0])

    def slow(report: Report, found: Findings) -> None:
        for name, seconds in (("one", 20.0), ("two", 20.0), ("three", 20.0)):
            report.attempt(found, name, lambda seconds=seconds: now.__setitem__(0, now[0] + seconds))

    report.part("first", 30.0, slow)
    report.part("second", 30.0, slow)
    report.part("third", 30.0, slow)
    late: Any = "not run: out of time"
    assert [report.found["first"][name] for name in ("one", "two", "three")] == [None, None, late]
    assert [report.found["second"][name] for name in ("one", "two", "three")] == [None, late, late]
    assert "third" not in report.found
