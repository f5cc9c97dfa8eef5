"""Drafts from a reference: a text that the answer is expected to resemble.

The sentence to correct, the file to edit, a page's OCR layer, an earlier transcript. Yang et al. 2023, "Inference with
Reference", arXiv 2304.04487; Ge et al. 2022, "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding",
arXiv 2205.10350, where the reference is the sentence to correct.
"""

from collections.abc import Hashable, Mapping, Sequence

from pydantic import Field

from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source, SourceProposer
from specdec.strategies.base import Engine
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.sources.cursor import (
    BEGUN,
    FOLLOWED,
    INSERTED,
    REPEATED,
    REPLACED,
    SKIPPED,
    Cursor,
    Reference,
)

NAME = "reference"
_MEMORY = 0.9  # weight of earlier tokens in a request's trust after each new one
_LEVELS = 4  # of trust


class ReferenceProposer(SourceProposer):
    """Drafts the request's reference from where the text has got to, and nothing without a reference.

    After an edit it drafts the places where the reference may go on. Takes some microseconds per node. Memory: about
    150 bytes per token of the reference.

    >>> from specdec.testing import first_drafts
    >>> for tree in first_drafts(ReferenceProposer(num_nodes=6), prompt=[0], num_steps=2, reference=[1, 2, 7, 4, 5]):
    ...     print(tree)
    DraftTree(tokens=[0, 1, 2, 7, 4, 5], parents=[-1, 0, 1, 2, 3, 4])
    DraftTree(tokens=[3, 4, 7, 5, 4, 5], parents=[-1, 0, 0, 1, 2, 4])

    The text goes on with 1, 2, 3. Then 3 may replace 7, or stand before it.
    """

    num_nodes: int = Field(default=32, ge=1, description="nodes of a draft at most")

    @property
    def reads_reference(self) -> bool:
        return True

    def bind(self, host: Host) -> Engine:
        # Under other rules, shared rates would change the text of later requests.
        return ReferenceEngine(self, is_chain=not host.takes_trees) if host.is_keyed else super().bind(host)

    def start(self, request: Request) -> Source:
        return ReferenceEngine(self).start(request)


class ReferenceEngine(Engine):
    """The acceptance rates of all requests."""

    def __init__(self, config: ReferenceProposer, is_chain: bool = False) -> None:
        self._config, self._is_chain = config, is_chain
        self.forget()

    def forget(self) -> None:
        self.rates = AcceptanceRates(NAME, _prior)

    def start(self, request: Request) -> Source:
        return _ReferenceSource(request, self._config, self._is_chain, self.rates)


class _ReferenceSource(Source):
    """Follows the committed tokens through the reference.

    A request's trust is the share of its recent tokens that were the next one at the cursor's first place. Acceptance
    rates are measured by level of trust, so an unrelated reference is soon drafted from only where the text repeats it.
    """

    def __init__(self, request: Request, config: ReferenceProposer, is_chain: bool, rates: AcceptanceRates) -> None:
        super().__init__(request, config, is_chain)
        self._rates, self._trust, self._num_read = rates, 0.5, len(request.tokens)
        self._reference = Reference(request.reference)
        self._cursor = self._reference.begin(request.tokens)

    def root(self) -> Cursor | None:
        if not self._reference.tokens:
            return None
        for token in self.request.tokens[self._num_read :]:
            expected = next(iter(self._next_tokens(self._cursor)), None)
            self._trust += (1.0 - _MEMORY) * ((token == expected) - self._trust)
            self._cursor = self._reference.follow(self._cursor, token)
        self._num_read = len(self.request.tokens)
        is_lost = self._level == 0 and all(place.run < 2 for place in self._cursor.places)
        return None if is_lost else self._cursor

    @property
    def _level(self) -> int:
        return min(int(_LEVELS * self._trust), _LEVELS - 1)

    def follow(self, state: Cursor, token: int) -> Cursor:
        return self._reference.follow(state, token)

    def candidates(self, state: Cursor) -> Sequence[Candidate]:
        rates, level = self._rates, self._level
        return [(token, rates[bucket, level]) for token, bucket in self._next_tokens(state).items()]

    def _next_tokens(self, cursor: Cursor) -> Mapping[int, Hashable]:
        """Return the next token of each place with the bucket of the first place that has it."""
        tokens, found = self._reference.tokens, dict[int, Hashable]()
        for position, run, kind in cursor.places:
            if 0 <= position < len(tokens):
                found.setdefault(tokens[position], (kind, run))
        return found


# Near what was measured on 40 articles, with 3 % of their words changed in the reference.
_RIGHT_BY_RUN = 0.7, 0.8, 0.85, 0.9, 0.93, 0.94, 0.95, 0.96, 0.96  # of a place that the text has followed
_RIGHT_AT_ONCE = {BEGUN: 0.7, REPEATED: 0.6, SKIPPED: 0.7, REPLACED: 0.25, INSERTED: 0.2}
_WORTH_BY_LEVEL = 0.3, 0.7, 1.0, 1.0


def _prior(bucket: Hashable) -> float:
    assert isinstance(bucket, tuple), "buckets are ((kind, number), run), level"
    ((kind, number), run), level = bucket
    num_seen = {SKIPPED: 1, REPEATED: 2}.get(kind, 0)  # tokens that agreed when the place was found
    is_followed = kind == FOLLOWED or run > num_seen
    right: float = _RIGHT_BY_RUN[run] if is_followed else _RIGHT_AT_ONCE[kind] / max(1, number)
    return right * _WORTH_BY_LEVEL[level]
