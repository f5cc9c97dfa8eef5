"""The errors that a caller may see; all are SpecdecErrors.

SpecdecError
├── RequestError    a prompt or a setting that can't be honoured
├── ModelError      a model or tokenizer that isn't supported
│   └── HubUnreachableError    the model isn't cached, and the hub can't be reached
├── NumericsError   the model's logits are not numbers
└── PluginError     a plug-in that is unknown, ambiguous, misconfigured or breaks its contract

Each message says what was given, what is allowed and the remedy.
"""

import difflib
import errno
import re
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_OUT_OF_MEMORY = re.compile(
    "can't allocate memory|cannot allocate memory|out of memory|not enough memory|failed to allocate|bad_alloc|"
    "bad allocation|can't start new thread|could not create a primitive(?! descriptor)",  # that is an unsupported dtype
    re.IGNORECASE,
)
_OF_RUST = "SafetensorError", "Exception"  # the classes of safetensors' and tokenizers' errors
_RAN_OUT = "memory ran out"  # in every error of specdec's about it, with a remedy
_LONGEST = 200  # characters of a value or a reason in a message


class SpecdecError(Exception):
    """Base of every error that specdec raises on purpose."""


class RequestError(SpecdecError):
    """A prompt or a setting that can't be honoured."""


class ModelError(SpecdecError):
    """A model or tokenizer that isn't supported."""


class HubUnreachableError(ModelError):
    """A model isn't in the hub's cache, and the hub can't be reached."""


class NumericsError(SpecdecError):
    """The model produced logits that are NaN or infinite."""


class PluginError(SpecdecError):
    """A plug-in that is unknown, ambiguous, misconfigured or breaks its contract."""


def failure(author: str, error: Exception) -> PluginError:
    """Return a PluginError that says in one line what a plug-in's code raised, and where."""
    fault = PluginError(f"{author} failed with {in_one_line(error)}{_place(error)}")
    if is_out_of_memory(error):
        fault = PluginError(f"{author} failed: {memory_ran_out(error)}")
    fault.__cause__ = error
    return fault


@contextmanager
def blaming(author: str) -> Iterator[None]:
    """Raise what a third party's code raises as a PluginError that names its author, and a SpecdecError as it is."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:
        raise failure(author, error) from error


class Failing(Protocol):
    """A request, as ``Guard`` ends it."""

    @property
    def is_finished(self) -> bool:
        """True once the request has ended."""

    def fail(self, error: Exception) -> None:
        """End the request with an error, unless it has ended."""


class Guard(AbstractContextManager["Guard", bool]):
    """A context manager around a third party's code, whose exceptions end requests and name the author.

    Args:
        author: the code's, such as "proposer LookaheadProposer".
        requests: end with the exception; if all of them have ended before, a warning says so instead.

    Attributes:
        error: the exception that was caught, if any: a SpecdecError as it is, others as a PluginError.
    """

    __slots__ = ("_requests", "author", "error")

    def __init__(self, author: str, requests: Iterable[Failing] = ()) -> None:
        self.author, self._requests = author, requests
        self.error: SpecdecError | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error if isinstance(error, SpecdecError) else failure(self.author, error)
        requests = [*self._requests]
        if requests and all(request.is_finished for request in requests):
            warnings.warn(str(self.error), stacklevel=2)
        for request in requests:
            request.fail(self.error)
        return True


def _place(error: Exception) -> str:
    """Return the innermost line in the file that specdec called, even if a library raised the error; "" if unknown."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = Path(__file__).parent
    stretches = groupby(lines, lambda line: Path(line[0].co_filename).is_relative_to(own))
    for called in [list(stretch) for is_own, stretch in stretches if not is_own][::-1]:
        file = Path(called[0][0].co_filename)
        if "torch" not in file.parts:  # its decorators are between specdec's own functions
            code, number = [line for line in called if line[0].co_filename == str(file)][-1]
            return f" ({code.co_name}, {file.name} line {number})"
    return ""


def in_one_line(error: BaseException) -> str:
    """Return the class of a foreign error and its message's first line, if it has one, or a pydantic error's faults."""
    lines = str(error).splitlines() or [""]
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):  # pydantic's, which is slow to import
        lines = [": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"]))) for fault in error.errors()]
    return f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error by which Python, torch or another library reports that memory ran out."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return True
    # Other classes may quote a caller's text.
    is_known = isinstance(error, RuntimeError | ImportError | OSError) or type(error).__name__ in _OF_RUST
    return is_known and number is None and _OUT_OF_MEMORY.search(str(error)) is not None


def memory_ran_out(error: BaseException) -> str:
    """Return a sentence with the remedy if memory ran out, here or in an error that led to this one; "" if not.

    A library, and code that handles a failure, may turn the one error into another.
    """
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        if isinstance(each, SpecdecError) and _RAN_OUT in str(each):
            return str(each)
        chain.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    found = next(filter(is_out_of_memory, chain), None)
    if found is None:
        return ""
    return f"{_RAN_OUT} ({in_one_line(found)}): free memory, or load the model in bfloat16 or a smaller one"


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Return the known names that were probably meant, ignoring case.

    These are the names that start with ``name`` (``temperature`` for ``temp``) or, if there are none, similar names,
    the most similar first.
    """
    folded = dict[str, str]()
    for each in known:
        folded.setdefault(each.casefold(), each)
    found = [each for each in folded if len(name) > 2 and each.startswith(name.casefold())][:most]
    found = found or difflib.get_close_matches(name.casefold(), folded, n=most)
    return [folded[each] for each in found]


def remedy(name: str, allowed: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return what to do about an unknown name: the name that was probably meant, or all that are allowed.

    Args:
        elsewhere: for names of other functions and libraries: the name to use instead, or a sentence.
    """
    found = name if name in elsewhere else next(iter(nearest(name, [*allowed, *elsewhere])), "")
    if not found:
        return f"allowed: {', '.join(allowed)}"
    instead = elsewhere.get(found, found)
    if " " not in instead:
        return f"did you mean {instead!r}?"
    return instead if found == name else f"did you mean {found!r}? {instead}"


def describe(error: "ValidationError", model: "type[BaseModel]", elsewhere: Mapping[str, str] | None = None) -> str:
    """Return a validation error in one line: each wrong name, its value, and what is allowed.

    ``elsewhere`` has remedies for names of other libraries.
    """
    faults = []
    for detail in error.errors():
        name = ".".join(map(str, detail["loc"]))
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ") or "it is refused"
        if detail["type"] not in {"value_error", "assertion_error"}:  # those are sentences of the model's own
            message = message[0].lower() + message[1:]
        if detail["type"] == "extra_forbidden":
            faults.append(f"unknown name {name!r} ({remedy(name, model.model_fields, elsewhere or {})})")
        elif detail["type"] == "missing":
            faults.append(f"{name} has no default: give {name}=…")
        elif name:
            faults.append(f"{name}={shortened(repr(detail['input']))}: {message}")
        else:
            faults.append(message)
    return "; ".join(faults)


def refuse_unknown(caller: str, given: Iterable[str], allowed: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse keyword arguments that a function doesn't have.

    Raises:
        RequestError: with each unknown name and what was probably meant.
    """
    if faults := [f"unknown name {name!r} ({remedy(name, allowed, elsewhere)})" for name in given]:
        raise RequestError(f"{caller}: {'; '.join(faults)}")


class Closable(Protocol):
    """An object that holds something until it is closed."""

    def close(self) -> object:
        """Release it."""


def close_all(closables: Iterable[Closable]) -> None:
    """Close each object, the last first, even if another one raises."""
    with ExitStack() as closing:
        for each in closables:
            closing.callback(each.close)


def shortened(text: str, length: int = _LONGEST) -> str:
    """Return a text, or if it has more than ``length`` characters, its beginning and an ellipsis in that length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: ``plural(1, "step")`` is "1 step", ``plural(2, "step")`` is "2 steps"."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"
