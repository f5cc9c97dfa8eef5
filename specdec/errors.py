"""The one family of errors a caller sees.

SpecdecError
├── RequestError    a prompt or a setting that can't be honoured
├── ModelError      a model or tokenizer that can't be driven
├── NumericsError   the model's logits are not numbers
└── PluginError     a plug-in that is unknown, ambiguous, misconfigured or breaks its contract

Each message says what was given, what is allowed and the remedy.
"""

import traceback
from pathlib import Path


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
    """What a third party's code raised, and where: in its own last line, or else in the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = Path(__file__).parent
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(own)] or frames
    where = f" ({theirs[-1].name}, {Path(theirs[-1].filename).name} line {theirs[-1].lineno})" if theirs else ""
    fault = PluginError(f"{author} failed with {type(error).__name__}: {error}{where}")
    fault.__cause__ = error
    return fault


def in_one_line(error: BaseException) -> str:
    """The kind of a foreign error, and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
