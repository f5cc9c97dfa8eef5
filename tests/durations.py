"""A pytest plug-in that writes how many seconds the tests of each file took, those of the slowest first.

    python -m pytest -p tests.durations --durations-json tests/durations.json tests -n 2

A file that is already there keeps its entries for test files that weren't run, unless those were removed.
"""

import json
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-json", type=Path, metavar="FILE", help="write the seconds of each test file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("durations_json")
    if path is not None and not hasattr(config, "workerinput"):  # xdist's workers report to this process
        config.pluginmanager.register(Durations(path, config.rootpath))


class Durations:
    """Adds up the setup, call and teardown of tests, by file."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.root = root
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        seconds = {test: round(duration, 1) for test, duration in {**known, **self.seconds}.items()}
        slowest_first = sorted(seconds.items(), key=lambda entry: (-entry[1], entry[0]))
        there = {test: duration for test, duration in slowest_first if (self.root / test).exists()}
        self.path.write_text(json.dumps(there, indent=1) + "\n")
