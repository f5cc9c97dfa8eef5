"""A batch that stays open: requests join it and leave it between any two passes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from specdec.decoding.prefix_cache import Prefixes
from specdec.decoding.request_state import RequestState as Handle
from specdec.decoding.result import Chunk, chunk_of
from specdec.decoding.scheduler import Scheduler
from specdec.errors import RequestError
from specdec.machine.facts import free_bytes
from specdec.record import Outcome, RequestHandle, StepRecord
from specdec.requests.asked import Asked
from specdec.runtime.binding import Bound
from specdec.strategies.base import Proposer
from specdec.target import Target
from specdec.verifiers.base import Verifier

_SHARE_OF_MEMORY = 0.7
_MOST_POSITIONS = 1 << 24  # where a model names no limit


class OpenBatch:
    """The requests that a generator decodes side by side; made by ``Generator.open_batch``, and used by one thread.

    Args:
        bound: the generator's parts, which nobody else uses until the batch is closed.
        verifier: the acceptance rule of requests that name none.
        notes: returns what the generator has to say with its next result.
        max_batch_size, max_cache_bytes: as of the generator.
        max_prefix_bytes: of keys and values that are kept for requests which begin alike.

    Attributes:
        most_tokens: of one request, prompt and new ones, whose keys and values have room; None where that isn't known.
            A request that may come to more is served alone, as far as memory goes.
    """

    def __init__(
        self,
        bound: Bound,
        verifier: Verifier,
        notes: Callable[[Bound], tuple[str, ...]],
        *,
        max_batch_size: int,
        max_cache_bytes: int | None,
        max_prefix_bytes: int = 0,
    ) -> None:
        self._bound, self._verifier, self._notes = bound, verifier, notes
        self._requests = set[Handle]()
        self._is_fresh = True  # the parts were made, or looked at, for this batch
        max_cache_bytes = max_cache_bytes or _share_of_free(bound.target, max_prefix_bytes)
        self.most_tokens = _most_tokens(bound.target, max_cache_bytes)
        self.prefixes = Prefixes(bound.target, max_prefix_bytes)
        bound.contexts.prefixes = self.prefixes if max_prefix_bytes else None
        self._scheduler = Scheduler(
            bound.target,
            bound.fallback,
            max_batch_size=max_batch_size,
            max_cache_bytes=max_cache_bytes,
            flags_ties=bound.driven.numerics.noise > 0.0,
            contexts=bound.contexts,
        )

    @property
    def num_active(self) -> int:
        """Requests in the cache."""
        return self._scheduler.num_active

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return self._scheduler.num_waiting

    @property
    def cache_bytes(self) -> int:
        """Bytes that the requests' keys and values take, without prefixes."""
        return self._bound.target.backend.cache_bytes(())

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes that the keys and values of a lone request of ``num_tokens`` take; 0 where that isn't known."""
        return self._bound.target.backend.cache_bytes([num_tokens])

    def add(
        self,
        question: Asked,
        proposers: Sequence[Proposer] = (),
        verifier: Verifier | None = None,
        wants_text: bool = False,
    ) -> list[Handle | Exception]:
        """Let the prompts of a call wait for their turn; for one that can't be served, return why.

        Args:
            question: the prompts, and their settings.
            proposers: one for all prompts, or one for each; by default the generator's. One that is new is bound now,
                which may take seconds.
            verifier: their acceptance rule; by default the generator's.
            wants_text: ``chunk`` is to have text.

        Raises:
            SpecdecError: for settings that are refused, or a strategy that can't be bound.
            RequestError: for a model that was changed since the batch was opened, so that its parts don't fit any more.
        """
        self._check_model()
        rule = self._verifier if verifier is None else verifier
        strategies = self._bound.strategies
        drafting = [strategies.of(proposer, rule) for proposer in proposers or [strategies.own_proposer]]
        requests = replace(self._bound.intake, verifier=rule).sequences(question, drafting, wants_text)
        for request in requests:
            if isinstance(request, Handle):
                self._requests.add(self._scheduler.add(request))
        return requests

    def _check_model(self) -> None:
        """Where nothing is decoding, look at the model again: its owner may have changed it."""
        if self.num_active or self.num_waiting:
            return
        self._bound.contexts.begin()
        if not self._is_fresh and not self._bound.is_current():
            raise RequestError("the model has changed since this batch was opened: close it, and open another")
        self._is_fresh = False

    def use_idle_time(self, seconds: float = 0.2) -> bool:
        """While there are no requests, ask the model what may follow each token, so that later drafts are better.

        Returns:
            True once nothing is left to do.
        """
        return bool(self.num_active or self.num_waiting) or self._bound.driven.use_idle_time(seconds)

    def cancel(self, request: RequestHandle) -> None:
        """End a request before the next pass; one that has ended stays as it is."""
        self._scheduler.cancel(request)

    def advance(self) -> StepRecord | None:
        """One pass, or the end of requests without one; None: nothing to do now."""
        record = self._scheduler.advance()
        ended = {outcome.request for outcome in record.outcomes if outcome.finish_reason} if record else set()
        if ended:
            self._requests -= ended
            self._bound.strategies.trim({request.plan.strategy for request in self._requests})
        return record

    def chunk(self, outcome: Outcome) -> Chunk:
        """The text and tokens that a step brought a request, with the result where that was the end."""
        bound, request = self._bound, outcome.request
        assert isinstance(request, Handle), "the batch's own records have its requests"
        rule = request.plan.verifier
        return chunk_of(
            outcome,
            bound.intake.tokenizer,
            numerics=bound.driven.numerics_now(),
            lossless=rule.lossless and not bound.weights.lossy and not bound.target.backend.lossy,
            notes=(*self._notes(bound), *request.notes) if outcome.finish_reason else (),
        )

    def check(self) -> None:
        """Raise PluginError where the backend has failed to open or close a row: no request can be served then."""
        self._bound.target.check_rows()

    def close(self) -> StepRecord | None:
        """Cancel whatever is under way or waits, and say which that was."""
        record = self._scheduler.close()
        self._bound.contexts.prefixes = None
        self._bound.strategies.trim()
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _share_of_free(target: Target, taken: int = 0) -> int | None:
    """Return the bytes that keys and values may take, besides those taken; the rest is for what a pass computes."""
    free = free_bytes(target.shapes.device)
    return None if free is None else max(1, int((free + target.backend.cache_bytes(())) * _SHARE_OF_MEMORY) - taken)


def _most_tokens(target: Target, max_bytes: int | None) -> int | None:
    """Return the tokens of a lone row that so many bytes have room for; None where that isn't known."""
    backend, positions = target.backend, target.shapes.max_positions or _MOST_POSITIONS
    if max_bytes is None or target.rows or not backend.cache_bytes([positions]):
        return None
    return bisect_right(range(1, positions + 1), max_bytes, key=lambda capacity: backend.cache_bytes([capacity]))
