"""The one family of errors a caller sees.

SpecdecError
├── RequestError    a prompt or a setting that can't be honoured
├── ModelError      a model or tokenizer that can't be driven
├── NumericsError   the model's logits are not numbers
└── PluginError     a plug-in that is unknown, ambiguous, misconfigured or breaks its contract

Each message says what was given, what is allowed and the remedy.
"""

import traceback
from itertools import groupby
from pathlib import Path

from specdec.renamed import hint


class SpecdecError(Exception):
    """Base of every error that specdec raises on purpose."""


class RequestError(SpecdecError):
    """A prompt or a setting that can't be honoured."""


class ModelError(SpecdecError):
    """A model or tokenizer that can't be driven."""


class NumericsError(SpecdecError):
    """The model produced logits that are NaN or infinite."""


class PluginError(SpecdecError):
    """A plug-in that is unknown, ambiguous, misconfigured or breaks its contract."""


def failure(author: str, error: Exception) -> PluginError:
    """Return a PluginError that says, in one line, what a third party's code raised and where in that code."""
    fault = PluginError(f"{author} failed with {in_one_line(error)}{_place(error)}")
    fault.__cause__ = error
    return fault


def _place(error: Exception) -> str:
    """The last line of the file that specdec called, whatever libraries that called in turn; "" for none."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = Path(__file__).parent
    stretches = groupby(lines, lambda line: Path(line[0].co_filename).is_relative_to(own))
    for called in [list(stretch) for is_own, stretch in stretches if not is_own][::-1]:
        file = Path(called[0][0].co_filename)
        if "torch" not in file.parts:  # which stands between specdec's own functions, as a decorator
            code, number = [line for line in called if line[0].co_filename == str(file)][-1]
            return f" ({code.co_name}, {file.name} line {number})"
    return ""


def in_one_line(error: BaseException) -> str:
    """The kind of a foreign error, and the first line of what it says; pydantic's first only counts the faults.

    An error about a name that is gone says what is in its place.
    """
    from pydantic import ValidationError  # the command line's start shouldn't wait for it

    lines = str(error).splitlines() or [""]
    if isinstance(error, ValidationError):
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    return f"{type(error).__name__}: {lines[0]}{hint(error)}"
