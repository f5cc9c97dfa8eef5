"""Drafts of the text that a request's constraint forces.

After ``{"`` a schema whose first property is required allows one text, which is drafted by its usual tokens:

    text so far ``{"``        draft ``c``, ``ustom``, ``er``, ``_``, ``name``, ``":``, `` "``

Where the mask allows several tokens, the model may spell the text by others, so drafts are verified like all others.
Acceptance rates are measured apart for tokens that are the only allowed one and for other tokens of a forced text.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar

from pydantic import Field

from specdec.constraints.path_state import PathState
from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source, SourceProposer
from specdec.strategies.base import Engine
from specdec.strategies.host import Host
from specdec.strategies.request import Request

_ONLY, _SPELLED = "only", "spelled"
_RIGHT = {_ONLY: 0.999, _SPELLED: 0.9}


class GrammarProposer(SourceProposer):
    """Drafts the text that the request's constraint forces, and nothing where several texts are allowed.

    >>> from specdec.testing import FixedTokens, first_drafts
    >>> first_drafts(GrammarProposer(), prompt=[1, 2], constraint=FixedTokens(tokens=(7, 5, 7)))
    [DraftTree(tokens=[2, 7, 5, 7], parents=[-1, 0, 1, 2])]

    The constraint allows one text, so all of it is drafted.
    """

    learns_across_requests: ClassVar[bool] = True

    num_nodes: int = Field(default=32, ge=1, description="nodes of a draft at most")

    def bind(self, host: Host) -> Engine:
        return (
            GrammarEngine(self) if host.is_keyed else super().bind(host)
        )  # else the text would depend on earlier ones

    def start(self, request: Request) -> Source:
        return GrammarEngine(self).start(request)


class GrammarEngine(Engine):
    """The acceptance rates of all requests."""

    def __init__(self, config: GrammarProposer) -> None:
        self._config = config
        self.forget()

    def forget(self) -> None:
        self.rates = AcceptanceRates("grammar", _prior)

    def start(self, request: Request) -> Source:
        return _GrammarSource(request, self._config, self.rates)


class _GrammarSource(Source):
    is_certain: ClassVar[bool] = True

    def __init__(self, request: Request, config: GrammarProposer, rates: AcceptanceRates) -> None:
        super().__init__(request, config)
        self._rates = rates

    def root(self) -> PathState | None:
        return self.request.constraint()

    def follow(self, state: PathState, token: int) -> PathState | None:
        return state.follow(token)

    def candidates(self, state: PathState) -> Sequence[Candidate]:
        forced = state.forced
        return [(forced[0], self._rates[_ONLY if state.is_forced else _SPELLED])] if forced else ()


def _prior(bucket: Hashable) -> float:
    return _RIGHT[str(bucket)]
