"""The limit of open files: it is raised as far as it goes, and refused with the remedy where that is too little."""

import subprocess
import sys


def limited(limits: str, code: str) -> "subprocess.CompletedProcess[str]":
    command = ["bash", "-c", f'{limits}; exec "$0" -c "$1"', sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = (
        "import resource; from specdec.apps.serving.open_files import connections_that_fit, raise_limit; raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), connections_that_fit(64), connections_that_fit(9999))"
    )
    limits, few, many = limited("ulimit -Sn 100; ulimit -Hn 5000", code).stdout.strip().rsplit(" ", 2)
    assert (limits, few) == ("(5000, 5000)", "64")
    assert 4900 < int(many) < 5000 - 16


def test_too_few_descriptors_are_refused_with_the_remedy() -> None:
    code = "from specdec.apps.serving.open_files import connections_that_fit; connections_that_fit(64)"
    refused = limited("ulimit -n 24", code).stderr
    assert "the limit of open files is 24" in refused
    assert "LimitNOFILE" in refused
