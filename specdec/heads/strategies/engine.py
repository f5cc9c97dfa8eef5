"""The engine of a trained head over pairs: its passes, which draft for all requests of a batch at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from specdec.heads.base import HeadRunner
from specdec.heads.drafting import DraftGrowth, DraftSize, begin
from specdec.heads.pair_cache import PairCache, prefill
from specdec.heads.strategies.candidates import Candidates, DraftNoise, fetched, prior
from specdec.heads.strategies.drafter import HeadDrafter, PaysByDrafter, own_drafters
from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.base import Drafter, Engine, Pays
from specdec.strategies.request import Request
from specdec.strategies.signals import Hidden, Nodes, Signal
from specdec.tree import Budget, DraftTree

_WIDTH_IN_MERGES = 1  # nodes fed per level: the head's most probable path
_MOST_PAIRS = 8  # in a draft's first pass; earlier ones are cached without it, in a pass of their own


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The options of a proposer that shape its trees."""

    top_k: int
    depth: int
    num_nodes: int
    min_probability: float


class HeadEngine(Engine):
    """The head, which drafts for all requests of a batch level by level.

    Args:
        runner: runs the head.
        layers: the target's layers whose hidden states the head reads, as ``Hidden`` numbers them.
        name: the strategy's, as the source of its candidates.
        learns: requests share acceptance rates in merges; False if the text depends on the drafts.
    """

    def __init__(
        self,
        options: TreeOptions,
        runner: HeadRunner,
        layers: Sequence[int],
        name: str,
        learns: bool = True,
    ) -> None:
        self.head, self._runner, self._options, self._learns = runner.head, runner, options, learns
        self._name, least = name, options.min_probability
        self._least = math.log(least) if least else -math.inf  # of a path that is continued
        self.states = Hidden(tuple(layers))
        self._target_ids = self.head.target_ids
        self.forget()

    def forget(self) -> None:
        self._acceptance_rates = AcceptanceRates(self._name, prior)

    def acceptance_rates(self) -> AcceptanceRates:
        """Return a new request's acceptance rates."""
        return self._acceptance_rates if self._learns else AcceptanceRates(self._name, prior)

    def new_cache(self) -> PairCache:
        """Return an empty cache, which grows in the sizes that the runner prefers."""
        return PairCache(self.head, self._runner.num_slots)

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.PROMPT, self.states), (Nodes.PATH, self.states)})

    def start(self, request: Request) -> Drafter:
        return HeadDrafter(request, self)

    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        own = own_drafters(drafters)
        self._draft(own, budgets, self._options.top_k, self._options.num_nodes)
        return [drafter.tree(budget) for drafter, budget in zip(own, budgets, strict=True)]

    def prepare_drafts(self, drafters: Sequence[Drafter], budgets: Sequence[Budget], pays: Pays) -> None:
        most = self._options.depth * self._options.top_k
        self._draft(own_drafters(drafters), budgets, _WIDTH_IN_MERGES, most, pays)

    @torch.inference_mode()
    def store(self, drafter: HeadDrafter) -> None:
        """Cache the keys and values of a request's pending pairs; nothing is drafted after the last of them."""
        if drafter.pending:
            states, tokens = self._take_pending(drafter)
            self._append(drafter, states, tokens)

    def _append(self, drafter: HeadDrafter, states: torch.Tensor, tokens: Sequence[int]) -> None:
        prefill(self._runner, drafter.cache, states, tokens)

    def _take_pending(self, drafter: HeadDrafter) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the pending pairs of a request: states (n, layers * size), and the tokens after them."""
        stop, pending = drafter.num_known, drafter.pending
        states = (pending[0] if len(pending) == 1 else torch.cat(pending)).to(self._target_ids.device)
        drafter.pending, drafter.last = [], states[-1:].clone()
        return states, drafter.request.tokens[stop - len(states) + 1 : stop + 1]

    def _take_unread(self, drafter: HeadDrafter) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the pairs that a draft begins with: the pending ones, or the last pair once more."""
        if not drafter.pending:
            assert drafter.last is not None, "a request that can draft has a last pair"
            drafter.cache.truncate(len(drafter.cache) - 1)
            return drafter.last, drafter.request.tokens[-1:]
        states, tokens = self._take_pending(drafter)
        if len(tokens) > _MOST_PAIRS:
            self._append(drafter, states[:-1], tokens[:-1])
            return states[-1:], tokens[-1:]
        return states, tokens

    @torch.inference_mode()
    def _draft(
        self,
        drafters: Sequence[HeadDrafter],
        budgets: Sequence[Budget],
        width: int,
        num_nodes: int,
        pays: Pays = lambda _: True,
    ) -> None:
        """Draft for each request whose hidden states before the root are all known.

        Args:
            width: nodes fed per level.
            num_nodes: of each draft.
            pays: as in ``prepare_drafts``.
        """
        depths = self._depths(drafters, budgets)
        if not depths or not pays([float(drafter in depths) for drafter in drafters]):
            return
        trees = self._trees(
            depths, width, num_nodes, lambda reached: pays([reached.get(drafter, 0.0) for drafter in drafters])
        )
        for (drafter, depth), drafted in zip(depths.items(), trees, strict=True):
            drafted.depth, drafted.least = depth, self._least
            drafter.notes = self._runner.notes
            drafter.take(drafted)

    def _depths(self, drafters: Sequence[HeadDrafter], budgets: Sequence[Budget]) -> dict[HeadDrafter, int]:
        """Begin a step; return the longest path of each request that the head can draft for."""
        depths = dict[HeadDrafter, int]()
        for drafter, budget in zip(drafters, budgets, strict=True):
            drafter.drafted = drafter.drawn = None
            depth = min(self._options.depth, budget.depth, budget.num_tokens - 1)
            if depth > 0 and budget.num_nodes > 0 and drafter.can_draft:
                depths[drafter] = depth
        return depths

    def _trees(
        self,
        depths: Mapping[HeadDrafter, int],
        width: int,
        num_nodes: int,
        pays: PaysByDrafter,
    ) -> Sequence[Candidates]:
        """Run the head's passes, and return the candidates of each request in ``depths``, its longest path.

        Args:
            pays: called before each pass but the first, with the probabilities of the paths that it continues.
        """
        size = DraftSize(min(width, self._num_children), self._num_children, self._options.depth)
        return fetched(self._grown(depths, partial(begin, size=size), pays).best(num_nodes))

    @property
    def _num_children(self) -> int:
        """The number of candidates after a node."""
        return min(self._options.top_k, self._runner.num_tokens)

    def _grown(
        self,
        depths: Mapping[HeadDrafter, int],
        begin: Callable[..., DraftGrowth],
        pays: PaysByDrafter = lambda _: True,
    ) -> DraftGrowth:
        """Run the head's passes.

        Args:
            depths, pays: as for ``_trees``.
            begin: called with the runner, each request's cache, states and tokens, and the noise.
        """
        ready = list(depths)
        noise = DraftNoise([drafter.request for drafter in ready], self._target_ids)
        states, tokens = zip(*map(self._take_unread, ready), strict=True)
        growth = begin(self._runner, [drafter.cache for drafter in ready], states, tokens, noise=noise.at)
        for level in range(1, max(depths.values())):
            reached = {
                drafter: math.exp(log_prob)
                for drafter, log_prob in zip(ready, growth.next_log_probs.tolist(), strict=True)
                if log_prob >= self._least and depths[drafter] > level
            }
            if not any(reached.values()) or (growth.runs_passes and not pays(reached)):
                break
            growth.feed()
        return growth
