"""Token recycling: draft the tokens that the target itself predicted the last time it saw the same tokens.

Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696: a table of successors by the last token, updated from
every node of every pass. Here a second table is keyed by the last two tokens, and measured acceptance rates replace the
fixed tree.

Under verifiers keyed by position, the noise of later positions is known. When sampling, candidates are therefore ranked
by logit / temperature + noise, which predicts the draw.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from specdec.strategies.auto.acceptance_rates import AcceptanceRates
from specdec.strategies.auto.source import Candidate, Source, SourceProposer
from specdec.strategies.base import Engine
from specdec.strategies.feedback import Feedback
from specdec.strategies.host import Host
from specdec.strategies.request import Request
from specdec.strategies.signals import Nodes, Signal, TopLogits
from specdec.strategies.sources.vocabulary_prior import VocabularyPrior, preceding_token

Successors = tuple[tuple[int, ...], tuple[float, ...]]  # tokens, most likely first, and their logits
_GAPS = 6  # buckets of the distance to the best other score, a unit of log-probability each
_NO_FILE = "`token_recycling` learns from request to request by itself; to draft from a file, add `datastore:path=…`"


class TokenRecyclingProposer(SourceProposer):
    """Drafts the target's own latest top-k predictions after each token and token pair.

    Takes some microseconds per node. Memory: about a kilobyte per token and per token pair, up to ``num_pairs`` of
    each.

    >>> from specdec.testing import first_drafts
    >>> for tree in first_drafts(TokenRecyclingProposer(k=1, num_nodes=4), prompt=[0], num_steps=4, vocab_size=3):
    ...     print(tree.tokens)  # once 0 has been followed by 1, 1 by 2 and 2 by 0, this order is drafted
    [0]
    [1]
    [2]
    [0, 1, 2, 0]
    """

    instead: ClassVar[Mapping[str, str]] = {
        "vocabulary_seconds": "`specdec prepare` or generator.prepare() does this once, and later loads read it",
        **dict.fromkeys(("path", "save_to"), _NO_FILE),
    }

    k: int = Field(default=6, ge=1, description="successors cached per token or token pair")
    num_pairs: int = Field(default=1 << 15, ge=0, description="tokens, and token pairs, whose successors are cached")

    def wants(self) -> frozenset[Signal]:
        return frozenset({(Nodes.ALL, TopLogits(self.k))})

    def bind(self, host: Host) -> Engine:
        if not host.is_keyed:  # shared tables would change the text of later requests
            return super().bind(host)
        prior = VocabularyPrior(host.idle_target, preceding_token(host.tokenizer))
        prior.prepare(lambda *_: None, 0.0)  # reads the file of an earlier generator
        return RecyclingEngine(self, prior)

    def start(self, request: Request) -> Source:
        return RecyclingEngine(self).start(request)


class RecyclingEngine(Engine):
    """The tables and acceptance rates of all requests."""

    def __init__(self, config: TokenRecyclingProposer, prior: VocabularyPrior | None = None) -> None:
        self.config = config
        self.prior = prior or VocabularyPrior(lambda: None, 0)
        self.signal = (Nodes.ALL, TopLogits(config.k))
        self._num_pairs = config.num_pairs
        self.forget()

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        return self.prior.prepare(on_progress, seconds)

    def forget(self) -> None:
        self.acceptance_rates = AcceptanceRates("token_recycling", _prior)
        self.of_token, self.of_pair = dict[int, Successors](), dict[tuple[int, int], Successors]()
        self.of_rank = {
            order: [self.acceptance_rates[order, rank] for rank in range(self.config.k)] for order in _RIGHT
        }

    def remember(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        before_root: int,
        predictions: Mapping[int, Successors],
    ) -> None:
        """Store the predictions at nodes of a tree by the node's token, and by the pair of its parent's and its own.

        Evicts the oldest entries.

        Args:
            tokens, parents: of all nodes of the tree.
            before_root: the committed token before the root, -1 if there is none.
            predictions: by node.
        """
        of_token, of_pair, most = self.of_token, self.of_pair, self._num_pairs
        for node, successors in predictions.items():
            token = tokens[node]
            pair = (tokens[parents[node]] if node else before_root), token
            of_token.pop(token, None)  # a key that is set again stays where it is
            of_pair.pop(pair, None)
            of_token[token] = of_pair[pair] = successors
            if len(of_pair) > most:
                del of_pair[next(iter(of_pair))]
            if len(of_token) > most:
                del of_token[next(iter(of_token))]

    def start(self, request: Request) -> Source:
        return _RecyclingSource(request, self)


class _RecyclingSource(Source):
    def __init__(self, request: Request, engine: RecyclingEngine) -> None:
        super().__init__(request, engine.config)
        self._engine, self._acceptance_rates = engine, engine.acceptance_rates

    def root(self) -> tuple[int, int, int]:
        tokens = self.request.tokens
        return (tokens[-2] if len(tokens) > 1 else -1), tokens[-1], len(tokens)

    def follow(self, state: tuple[int, int, int], token: int) -> tuple[int, int, int]:
        return state[1], token, state[2] + 1

    def candidates(self, state: tuple[int, int, int]) -> Iterable[Candidate]:
        before, last, position = state
        engine = self._engine
        order, successors = 2, engine.of_pair.get((before, last))
        if successors is None:
            order, successors = 1, engine.of_token.get(last)
        if successors is None:
            order, successors = 0, engine.prior.table.of(last, engine.config.k)
        if successors is None:
            return ()
        if self.request.noise is not None:
            return self._drawn(order, successors, position)
        return zip(successors[0], engine.of_rank[order], strict=False)

    def _drawn(self, order: int, successors: Successors, position: int) -> Sequence[Candidate]:
        """Return the candidates by their scores with the position's noise, most likely first."""
        assert self.request.noise is not None, "called only when sampling"
        noise, temperature = self.request.noise(position), self.request.temperature
        tokens, logits = successors
        drawn = zip(logits, noise[list(tokens)].tolist(), tokens, strict=True)
        scores = sorted(((logit / temperature + added, token) for logit, added, token in drawn), reverse=True)
        best, second = scores[0][0], scores[min(1, len(scores) - 1)][0]
        gaps = [best - second, *(best - score for score, _ in scores[1:])]
        return [
            (token, self._acceptance_rates[order, min(rank, 2), int(min(gap, _GAPS))])
            for rank, ((_, token), gap) in enumerate(zip(scores, gaps, strict=True))
        ]

    def receive(self, feedback: Feedback) -> None:
        predictions: Mapping[int, Successors] = feedback.signals.get(self._engine.signal, {})
        tree, tokens = feedback.tree, self.request.tokens
        place = len(tokens) - len(feedback.tokens) - 2
        before_root = tokens[place] if place >= 0 else -1
        self._engine.remember(tree.tokens, tree.parents, before_root, predictions)


# How often a successor was right, by order and rank: SmolLM2-135M-Instruct, greedy, 40 chat prompts.
_RIGHT = {0: (0.13, 0.06, 0.05, 0.03, 0.02), 1: (0.17, 0.07, 0.05, 0.03, 0.02), 2: (0.55, 0.08, 0.05, 0.03, 0.02)}


def _prior(bucket: Hashable) -> float:
    assert isinstance(bucket, tuple), "buckets are (order, rank) or (order, rank, gap)"
    rates = _RIGHT[bucket[0]]
    return rates[min(bucket[1], len(rates) - 1)]
