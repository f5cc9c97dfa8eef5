"""Compiles the constraints of requests off the threads that decode and encode."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from specdec.constraints.base import Vocabulary
from specdec.constraints.compiled import Compiled
from specdec.constraints.grammar_constraint import GrammarConstraint
from specdec.constraints.matcher import library_special_tokens
from specdec.constraints.path_state import PathState
from specdec.errors import RequestError
from specdec.serving.answer_plans import AnswerPlan
from specdec.serving.errors import ApiError, busy
from specdec.serving.structured_outputs import refusal

_MOST_CONSTRAINTS = 64
_NUM_THREADS = 2  # a constraint may take seconds
_MOST_PENDING = 16 + _NUM_THREADS  # compilations that run or wait
_BUSY_SECONDS = 5.0  # after which a refused client should try again
_LONGEST_SEARCH = 2.0  # seconds of a refused compilation after which the part at fault is searched for


class ConstraintCompiler:
    """Compiles constraints, and keeps the last 64; used on the event loop.

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
        self._compiled: OrderedDict[GrammarConstraint, Compiled] = OrderedDict()

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
        if constraint not in self._compiled:
            self._compiled[constraint] = await self._compilation(constraint, plan.parts)
        compiled = self._compiled[constraint]
        self._compiled.move_to_end(constraint)
        while len(self._compiled) > _MOST_CONSTRAINTS:
            self._compiled.popitem(last=False)
        return compiled

    async def _compilation(
        self, constraint: GrammarConstraint, parts: Sequence[tuple[str, GrammarConstraint]]
    ) -> Compiled:
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

    def _compile(self, constraint: GrammarConstraint, parts: Sequence[tuple[str, GrammarConstraint]]) -> Compiled:
        began = time.monotonic()
        try:
            state = constraint.start(self.vocabulary)
            PathState(state, frozenset(), self.vocabulary.size).check_start()
        except RequestError as error:
            raise self._refusal(error, constraint, parts, time.monotonic() - began) from None
        return Compiled(constraint=constraint, state=state)

    def _refusal(
        self,
        error: RequestError,
        constraint: GrammarConstraint,
        parts: Sequence[tuple[str, GrammarConstraint]],
        seconds: float,
    ) -> ApiError:
        """Return the error with the field of the part that is refused by itself."""
        if seconds < _LONGEST_SEARCH:
            for param, part in parts:
                if part is constraint:  # its own error
                    continue
                try:
                    part.start(self.vocabulary)
                except RequestError as own:
                    return refusal(own, param)
        return refusal(error, parts[0][0])
