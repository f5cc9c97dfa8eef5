"""Grammars on llguidance (https://github.com/guidance-ai/llguidance), which comes with the extra ``structured``.

Its matchers change as they consume tokens, so the states of a text share one matcher. It is moved to a state's position
when the state's mask is read, by rollback to the common prefix and consumption of the rest: about 2 µs a token.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.errors import RequestError, in_one_line
from specdec.machine.extras import needs

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLTokenizer

MOST_SECONDS = 10.0  # for the compilation
LEAST_SECONDS = 0.2  # with less time left, no compilation is begun: it would be abandoned, and others refused for it
MOST_BYTES = 1 << 18  # of a grammar's text; a JSON schema of that size takes 0.2 s
_MOST_FORCED_BYTES = 256
_MOST_ABANDONED = 2  # compilations that go on after they were refused: a thread can't be ended
_ADVICE = " Enable '"  # then one of the library's own options
_NO_TEXT = (
    "no text can be whole: a rule that refers to itself needs an alternative that ends, and an expression a match"
)
_STOP_REASONS = dict.fromkeys(("NoExtension", "NoExtensionBias"), _NO_TEXT)  # by the library's own words
Answer = TypeVar("Answer")


def start(grammar: str, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
    """Compile a grammar in llguidance's own form, as ``LLMatcher.grammar_from_…`` returns it.

    Args:
        seconds: limit of the compilation (default: MOST_SECONDS).

    Raises:
        GrammarError: if the library refuses the grammar.
        SlowGrammarError: if it takes too long.
        BusyError: if too many such compilations go on.
        RequestError: if the library refuses the tokenizer, or isn't installed.
    """
    tokens = vocabulary.once(_library_tokens)
    matcher = _compiled(grammar, tokens, MOST_SECONDS if seconds is None else seconds)
    check(matcher)
    return _MatcherState(_SharedMatcher(matcher, tokens), _START)


def _compiled(grammar: str, tokens: "_Tokens", seconds: float) -> "LLMatcher":
    """A matcher for a grammar, from a thread that is given up after some seconds.

    Most grammars take a millisecond, and the library's own limits bound the others but a few: ``multipleOf`` with a
    large number, for one.
    """
    for each in [*tokens.abandoned]:
        if not each.is_alive():
            tokens.abandoned.pop(each, None)  # another caller may have removed it
    running = [*tokens.abandoned.values()]
    if grammar in running:
        raise _too_slow(seconds)
    if len(running) >= _MOST_ABANDONED:
        raise BusyError("constraints that were refused for their time are still being compiled: try again later")
    made: Future[LLMatcher] = Future()
    make = library().LLMatcher

    def compile_grammar() -> None:
        try:
            made.set_result(make(tokens.tokenizer, grammar, log_level=0))
        except Exception as error:  # such as text that isn't Unicode
            made.set_exception(error)

    thread = Thread(target=compile_grammar, daemon=True)
    thread.start()
    try:
        return made.result(seconds)
    except TimeoutError:
        tokens.abandoned[thread] = grammar
        raise _too_slow(seconds) from None


def _too_slow(seconds: float) -> "SlowGrammarError":
    return SlowGrammarError(f"the constraint takes longer than {seconds:g} s to compile: simplify it")


class SlowGrammarError(RequestError):
    """A grammar that isn't compiled in its time; the library may accept it."""


class BusyError(RequestError):
    """A grammar that isn't compiled now, whatever it is, since others take too long; it may be later."""


class GrammarError(RequestError):
    """A grammar that the library refuses; ``reason`` is the library's message in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the constraint is refused: {reason}")
        self.reason = reason


def library() -> Any:
    """Return the module llguidance.

    Raises:
        RequestError: if it isn't installed.
    """
    return needs("llguidance", "structured", "a constraint")


def check(matcher: "LLMatcher") -> None:
    """Raise GrammarError if a matcher has failed."""
    if matcher.is_error():
        lines = matcher.get_error().strip().partition("\n<state>")[0].splitlines()
        reason = " ".join(" ".join(lines).split()).partition(_ADVICE)[0].rstrip(". ")
        raise GrammarError(_STOP_REASONS.get(reason, reason))


def check_size(name: str, text: str) -> None:
    """Raise RequestError for a grammar's text that is too large, or isn't Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} has half of a surrogate pair: {in_one_line(error)}") from None
    if size > MOST_BYTES:
        raise RequestError(f"{name} has {size:,} bytes; at most {MOST_BYTES:,} are accepted")


def library_special_tokens(vocabulary: Vocabulary) -> Mapping[str, int]:
    """The ids of the tokens that grammars name by id, by text: no text or regular expression matches them.

    These are a tokenizer's special tokens, and all added ones in angle brackets.

    Raises:
        RequestError: if the library refuses the tokenizer, or isn't installed.
    """
    return vocabulary.once(_library_tokens).special


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The library's tokenizer for a vocabulary of ``size`` logits.

    Attributes:
        special: the ids of special tokens by text.
        abandoned: threads that may still compile, each with its grammar, which was refused for its time.
    """

    tokenizer: "LLTokenizer"
    size: int
    special: Mapping[str, int]
    abandoned: dict[Thread, str] = field(default_factory=dict)


def _library_tokens(tokenizer: Any, size: int) -> _Tokens:
    library()
    from llguidance.hf import from_tokenizer

    try:
        made = from_tokenizer(tokenizer, max(size, len(tokenizer)))
    except Exception as error:  # such as a tokenizer without a fast form
        raise RequestError(f"llguidance can't use this tokenizer: {in_one_line(error)}") from error
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {each.content: token for token, each in added.items() if token < size and made.is_special_token(token)}
    return _Tokens(made, size, special)


class _Position(NamedTuple):
    """A path as a linked list, the last token first; compared by identity."""

    before: "_Position | None"
    token: int
    depth: int


_START = _Position(None, -1, 0)


class _SharedMatcher:
    """One matcher for all states of a text.

    Args:
        compiled: a matcher at the start, which is copied and never moved.
    """

    def __init__(self, compiled: "LLMatcher", tokens: _Tokens) -> None:
        self._compiled, self.tokens = compiled, tokens
        self._renew()

    def copy(self) -> "_SharedMatcher":
        """A matcher of its own for another text."""
        return _SharedMatcher(self._compiled, self.tokens)

    def ask(self, position: _Position, question: Callable[["LLMatcher"], Answer]) -> Answer:
        """The answer to a question about a position.

        Raises:
            RequestError: if the grammar exceeds a limit of the library there.
        """
        answer = question(self._at_position(position))
        if self._matcher.is_error():  # perhaps since drafts have used up a limit: a fresh matcher sees the path alone
            self._renew()
            answer = question(self._at_position(position))
            if self._matcher.is_error():
                failed = self._matcher
                self._renew()
                check(failed)
        return answer

    def _renew(self) -> None:
        self._matcher, self._at = self._compiled.deep_copy(), _START

    def _at_position(self, position: _Position) -> "LLMatcher":
        here, there, missing = self._at, position, list[int]()
        while here is not there:
            if there.depth >= here.depth:
                assert there.before is not None, "all paths begin at the start"
                missing.append(there.token)
                there = there.before
            else:
                assert here.before is not None, "all paths begin at the start"
                here = here.before
        if self._at.depth > here.depth:
            self._matcher.rollback(self._at.depth - here.depth)
        if missing:
            self._matcher.consume_tokens(missing[::-1])
        self._at = position
        return self._matcher


class _MatcherState(ConstraintState):
    def __init__(self, shared: _SharedMatcher, position: _Position, forced: Sequence[int] | None = None) -> None:
        self._shared, self._position = shared, position
        self._forced = forced  # if given, the rest of an earlier state's

    @property
    def is_accepting(self) -> bool:
        return bool(self._shared.ask(self._position, lambda matcher: matcher.is_accepting()))

    def mask(self) -> "torch.Tensor":
        import torch

        bits = self._shared.ask(self._position, lambda matcher: matcher.compute_bitmask())
        tokens = self._shared.tokens
        allowed = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
        allowed[tokens.tokenizer.eos_tokens] = 0
        allowed = allowed[: tokens.size]
        return torch.from_numpy(allowed.view(np.bool_))

    def advance(self, token: int) -> ConstraintState:
        # The first state may be cached and start many texts: each needs a matcher of its own.
        shared = self._shared if self._position.depth else self._shared.copy()
        is_next = self._forced is not None and self._forced[:1] == (token,)
        rest = self._forced[1:] if self._forced is not None and is_next else ()
        return _MatcherState(shared, _Position(self._position, token, self._position.depth + 1), rest or None)

    def forced(self) -> Sequence[int]:
        if self._forced is None:
            text = self._shared.ask(self._position, lambda matcher: matcher.compute_ff_bytes())
            tokens = self._shared.tokens
            spelled = tokens.tokenizer.tokenize_bytes(text[:_MOST_FORCED_BYTES]) if text else []
            self._forced = tuple(spelled) if max(spelled, default=0) < tokens.size else ()
        return self._forced
