"""A batch that stays open: requests join and leave between any two passes."""

import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack

from specdec.costs import Costs
from specdec.decoding.request_state import RequestState as Handle
from specdec.decoding.result import Chunk, chunk_of, last_chunk_of
from specdec.decoding.scheduler import Scheduler
from specdec.decoding.strategy import Strategy
from specdec.decoding.turn import MAX_NODES, RequestTurn
from specdec.errors import RequestError, failure
from specdec.machine.facts import free_bytes
from specdec.machine.huge_pages import HugePages
from specdec.record import Outcome, StepRecord
from specdec.requests.generation_request import GenerationRequest
from specdec.requests.options import ProposerChoice, RequestOptions
from specdec.runtime.binding import Binding
from specdec.sampling.processors import processor_name, stateful
from specdec.target import Target
from specdec.verifiers.base import Verifier

_SHARE_OF_MEMORY = 0.7
_MOST_SLOWED = 1.5  # time of a pass with drafts of guests, over one without, where other requests wait for it
_LEAST_SHARE = 1 / MAX_NODES  # of their nodes, from which guests' drafts grow again


class OpenBatch(Scheduler):
    """A scheduler for prompts and text; made by ``Generator.open_batch``, and used by one thread.

    Args:
        binding: used by this batch alone until the batch is closed.
        max_batch_size, max_cache_bytes: as of the generator.
        max_prefix_bytes: keys and values cached for requests that begin with the same tokens.
        huge_pages: informed of the time of passes on a CPU.
        max_guest_size: for a batch of many users, whose own strategies are those that are bound now. All others are its
            guests: of those that aren't in use, the last ones stay bound, up to this size together (``size_of``). They
            draft at most a chunk's tokens, beside other requests no more than makes a pass half as long again, and less
            while drafting takes longer than passes.

    Attributes:
        most_tokens: the longest request, prompt and new tokens, whose keys and values have room; None if unknown. A
            longer request is served alone, as far as memory allows.
        prefix_cache: of the binding.
    """

    def __init__(
        self,
        binding: Binding,
        max_batch_size: int,
        max_cache_bytes: int | None,
        max_prefix_bytes: int = 0,
        huge_pages: HugePages | None = None,
        max_guest_size: float | None = None,
    ) -> None:
        target = binding.target
        self._binding = binding
        self._max_size, self._own, self._costs, self._share_of_guests = math.inf, frozenset[Strategy](), None, 1.0
        if max_guest_size is not None:
            self._max_size, self._own, self._costs = max_guest_size, binding.strategies.bound, binding.costs()
        self._huge_pages = huge_pages if target.shapes.device.type == "cpu" else None
        self._requests = set[Handle]()
        self._is_fresh = True  # the binding was renewed for this batch
        max_cache_bytes = max_cache_bytes or _share_of_free(target, max_prefix_bytes)
        self.most_tokens = _most_tokens(target, max_cache_bytes)
        self.prefix_cache = binding.prefix_cache
        self.prefix_cache.resize(max_prefix_bytes)
        super().__init__(
            target,
            binding.fallback,
            max_batch_size=max_batch_size,
            max_cache_bytes=max_cache_bytes,
            flags_ties=binding.numerics.noise > 0.0,
            prefix_cache=self.prefix_cache,
        )

    @property
    def cache_bytes(self) -> int:
        """Bytes that the requests' keys and values take, without the prefix cache."""
        return self._binding.target.backend.cache_bytes(())

    def bytes_for(self, num_tokens: int) -> int:
        """Bytes that the keys and values of a lone request of ``num_tokens`` take; 0 if unknown."""
        return self._binding.target.backend.cache_bytes([num_tokens])

    def add(
        self,
        prompt: Any = None,
        *,
        proposer: ProposerChoice = None,
        verifier: Verifier | None = None,
        wants_text: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[Handle | Exception]:
        """Queue prompts; return a handle for each, or the error of a prompt that can't be served.

        Args:
            prompt: as for ``Generator.generate``.
            proposer: one for all prompts, or one for each (default: the generator's). A new one is bound now, which may
                take seconds.
            verifier: default: the generator's.
            wants_text: True if ``chunk`` is to return text.
            options: settings, as for ``Generator.generate``.

        Raises:
            SpecdecError: for refused settings, or a strategy that can't be bound.
            RequestError: if the model has changed since the batch was opened.
        """
        return self.add_request(GenerationRequest.of(prompt, **options), proposer, verifier, wants_text)

    def add_request(
        self, request: GenerationRequest, proposer: ProposerChoice, verifier: Verifier | None, wants_text: bool
    ) -> list[Handle | Exception]:
        """Queue the prompts of a request; see ``add``."""
        self._check_model()
        binding = self._binding
        choice, strategies = binding.choice, binding.strategies
        rule = choice.verifier if verifier is None else verifier
        proposers = proposer if isinstance(proposer, list | tuple) else [proposer]
        chosen = [choice.proposer if each is None else choice.resolve(each) for each in proposers]
        drafting = [strategies.of(each, rule) for each in chosen]
        made = replace(binding.builder, verifier=rule).build(request, drafting, wants_text)
        handles = [handle for handle in made if isinstance(handle, Handle)]
        used = {id(one) for other in self._requests for one in stateful(other.settings)}
        for one in (one for handle in handles for one in stateful(handle.settings) if id(one) in used):
            raise RequestError(
                f"{processor_name(one)} may have state, and another request of the batch uses it: give each its own, "
                "or is_path_pure = True if what it returns follows from its arguments alone"
            )
        self._requests.update(map(self.enqueue, handles))
        return made

    def _check_model(self) -> None:
        """Refuse a model that its owner has changed; checked only while no request decodes."""
        if self.num_active or self.num_waiting:
            return
        if not self._is_fresh and not self._binding.is_current():
            raise RequestError("the model has changed since this batch was opened: close the batch and open another")
        self._is_fresh = False

    def use_idle_time(self, seconds: float = 0.2) -> bool:
        """Let the strategies prepare better drafts, unless requests decode or wait.

        Returns:
            True once no work is left.
        """
        if self.num_active or self.num_waiting:
            return True
        try:
            return self._binding.strategies.prepare(lambda *_: None, seconds)
        except Exception as error:  # a third party's code, which must not end a server
            warnings.warn(str(failure("preparing drafts", error)), stacklevel=2)
            return True

    def advance(self) -> StepRecord | None:
        record = super().advance()
        if record is None:
            return None
        if self._huge_pages is not None:
            self._huge_pages.add_pass_seconds(record.seconds.get("forward", 0.0))
        if self._costs is not None:
            self.limit_host_time(record)
        ended = {outcome.request for outcome in record.outcomes if outcome.finish_reason}
        if ended:
            self._requests -= ended
            in_use = {request.strategy for request in self._requests}
            self._binding.strategies.trim(self._own | in_use, self._max_size)
        return record

    def limit_drafts(self, turns: Sequence[RequestTurn]) -> None:
        if self._costs is None:
            return
        guests = [turn for turn in turns if turn.request.strategy not in self._own]
        shapes, most = self._target.shapes, MAX_NODES
        if guests and self.num_active > 1:
            most = _room(self._costs, len(turns), len(guests) if shapes.packs_rows else len(turns))
        for turn in guests:
            turn.max_nodes = int(self._share_of_guests * min(most, shapes.chunk))

    def limit_host_time(self, record: StepRecord) -> None:
        """Halve guests' drafts after a step in which drafting took longer than the pass; let them grow again slowly."""
        if record.seconds.get("propose", 0.0) > record.seconds.get("forward", 0.0):
            self._share_of_guests *= 0.5
        else:
            self._share_of_guests = min(1.0, 1.25 * max(_LEAST_SHARE, self._share_of_guests))

    def chunk(self, outcome: Outcome) -> Chunk:
        """Return a step's text and tokens of one request; the last chunk has the result."""
        binding, request = self._binding, outcome.request
        assert isinstance(request, Handle), "a batch's records have its own requests"
        if outcome.finish_reason is None:
            return chunk_of(request)
        return last_chunk_of(
            request,
            binding.loaded.tokenizer,
            numerics=binding.numerics,
            lossless=request.verifier.lossless and not binding.weights.lossy and not binding.target.examination.lossy,
            notes=(*binding.take_notes(), *binding.target.backend.notes, *request.notes),
        )

    def check(self) -> None:
        """Raise PluginError if the backend failed to open or close a row, after which no request can be served."""
        self._binding.target.check_rows()

    def close(self) -> StepRecord | None:
        """Cancel every request, and return their outcomes."""
        record = super().close()
        self.prefix_cache.resize(0)
        self._binding.strategies.trim(self._own, 0.0 if self._own else math.inf)
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _room(costs: Costs, num_rows: int, num_widened: int) -> int:
    """Return the draft nodes of each guest in a pass of ``num_rows`` rows; each node widens ``num_widened`` of them."""
    longest = _MOST_SLOWED * costs.at(num_rows)
    return bisect_right(range(1, MAX_NODES + 1), longest, key=lambda nodes: costs.at(num_rows + nodes * num_widened))


def _share_of_free(target: Target, taken: int = 0) -> int | None:
    """Return the bytes available for keys and values, without those ``taken``; the rest is for activations."""
    free = free_bytes(target.shapes.device)
    return None if free is None else max(1, int((free + target.backend.cache_bytes(())) * _SHARE_OF_MEMORY) - taken)


def _most_tokens(target: Target, max_bytes: int | None) -> int | None:
    """Return the tokens of a single row that fit in ``max_bytes``; None if unknown."""
    backend, positions = target.backend, target.shapes.context_length
    if max_bytes is None or target.rows or not backend.cache_bytes([positions]):
        return None
    return bisect_right(range(1, positions + 2), max_bytes, key=lambda capacity: backend.cache_bytes([capacity]))
