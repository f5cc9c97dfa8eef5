"""Compiles the constraints of requests off the threads that decode and encode."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from specdec.apps.serving.answer_constraints import AnswerPlan
from specdec.apps.serving.errors import ApiError, busy
from specdec.apps.serving.lenient_schema import enforceable, start_by
from specdec.apps.serving.structured_outputs import refusal
from specdec.constraints.base import ConstraintState, Vocabulary
from specdec.constraints.cache import Compiled, ConstraintCache
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import (
    MOST_SECONDS,
    BusyError,
    GrammarError,
    SlowGrammarError,
    library_special_tokens,
)
from specdec.constraints.path_state import PathState
from specdec.constraints.refusals import refused_part
from specdec.errors import RequestError

_NUM_THREADS = 2  # a constraint may take seconds
_MOST_PENDING = 16 + _NUM_THREADS  # compilations that run or wait
_BUSY_SECONDS = 5.0  # after which a refused client should try again


class ConstraintCompiler:
    """Compiles constraints; used on the event loop.

    Args:
        tokenizer: used by no other thread.
        vocab_size: entries of the model's logits.

    Attributes:
        vocabulary: the one that constraints are compiled for.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size)
        self._executor = ThreadPoolExecutor(_NUM_THREADS, "specdec-constraints")
        self._num_pending = 0
        self._cache = ConstraintCache(self.vocabulary)

    def prepare(self) -> None:
        """Start making the library's tokenizer, which takes a second."""

        def make() -> None:
            with suppress(RequestError):  # without the library, requests with constraints are refused
                library_special_tokens(self.vocabulary)

        self._executor.submit(make)

    async def compiled(self, plan: AnswerPlan) -> Compiled | None:
        """Return a plan's constraint, compiled; None if it has none.

        Raises:
            ApiError: with the field at fault, if it can't be enforced or takes too long, or if too many others wait.
        """
        constraint = plan.constraint
        if constraint is None:
            return None
        state = self._cache.find(constraint)
        if state is None:
            state = await self._compilation(constraint, plan.parts)
            self._cache.add(constraint, state)
        return Compiled(constraint=constraint, state=state)

    async def _compilation(
        self, constraint: GrammarConstraint, parts: Sequence[tuple[str, GrammarConstraint]]
    ) -> ConstraintState:
        if self._num_pending >= _MOST_PENDING:
            raise busy("The server is too busy: too many constraints wait for their compilation.", _BUSY_SECONDS)
        self._num_pending += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._compile, constraint, parts)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        """End the threads after their current work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _compile(
        self, constraint: GrammarConstraint, parts: Sequence[tuple[str, GrammarConstraint]]
    ) -> ConstraintState:
        try:
            state = self._start(constraint)
            PathState(state, frozenset(), self.vocabulary.size).check_start()
        except BusyError:
            message = "The server is too busy: constraints that were refused for their time are still being compiled."
            raise busy(message, _BUSY_SECONDS) from None
        except RequestError as error:
            raise self._refusal(error, constraint, parts) from None
        return state

    def _start(self, constraint: GrammarConstraint) -> ConstraintState:
        deadline = time.monotonic() + MOST_SECONDS
        try:
            return constraint.start(self.vocabulary)
        except GrammarError:
            weaker = enforceable(constraint, self.vocabulary, deadline)
            if weaker == constraint:
                raise
            return start_by(deadline, weaker, self.vocabulary)

    def _refusal(
        self, error: RequestError, constraint: GrammarConstraint, parts: Sequence[tuple[str, GrammarConstraint]]
    ) -> ApiError:
        """Return the error with the field of the part that is refused by itself."""
        param = parts[0][0]
        if isinstance(error, SlowGrammarError):
            return refusal(error, param)
        others = [each for each in parts if each[1] is not constraint]  # whose error this would be
        param, own = refused_part(others, self.vocabulary) or (param, error)
        return refusal(own, param)
