"""A fresh interpreter: the modules that it has imported once some code has run, and the ends of commands in it."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_MODELLING = re.compile(r"transformers\.(modeling_utils|models\..*modeling_\w+)")

_RUN_COMMANDS = """
import contextlib, io, json, sys
from specdec.apps.cli import main
told = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["specdec", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            code = left.code
    told.append([code, out.getvalue(), err.getvalue(), list(sys.modules)])
print(json.dumps(told))
"""


class Ended(NamedTuple):
    """The end of a command, and every module that is imported by then."""

    code: int
    out: str
    err: str
    modules: set[str]


def modules_after(statements: str) -> set[str]:
    """The modules that are imported once these statements have run."""
    return set(json.loads(_printed(f"{statements}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


def run_commands(commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run specdec commands one after the other in one process, so that what each imports adds up."""
    told = json.loads(_printed(_RUN_COMMANDS, json.dumps(commands)))
    return [Ended(code, out, err, set(modules)) for code, out, err, modules in told]


def modelling(modules: set[str]) -> set[str]:
    """The modules that hold models of transformers or what they are made of, which take seconds to import."""
    return set(filter(_MODELLING.fullmatch, modules))


def _printed(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
