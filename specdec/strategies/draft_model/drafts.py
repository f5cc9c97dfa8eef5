"""A draft model's drafts while they are extended: the nodes to forward next, and the candidates chosen from logits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from specdec.errors import NumericsError
from specdec.sampling.distributions import NodeOutputs
from specdec.strategies.draft_model.vocabulary import DraftVocabulary, TextVocabulary
from specdec.strategies.request import Request, softmax
from specdec.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class DraftDistribution:
    """The draft model's distribution over the target's vocabulary.

    Attributes:
        samples: candidates are drawn from it, as the acceptance rule reads q; if False, the most likely are chosen.
    """

    request: Request
    vocabulary: DraftVocabulary
    samples: bool

    def at(self, drafted: Sequence[int], logits: torch.Tensor) -> torch.Tensor | None:
        """Return the distribution after some draft tokens, ``(vocab,)``; None if the settings allow no token.

        Also None if a processor raises: the path may never be accepted, so the draft ends there without an error.

        If the noise g of the position is known, the distribution is softmax(log q + g): its most likely token is the
        draft model's draw with the target's noise (Daliri, Musco and Suresh 2024, arXiv 2408.07978).
        """
        check_logits(logits)
        try:
            q = self.request.warp(drafted, self.vocabulary.logits(logits))
        except Exception:  # a caller's own processor
            return None
        if not q.isfinite().all():
            return None
        if self.samples or self.request.noise is None:
            return q
        position = len(self.request.tokens) + len(drafted)
        return (q.log() + self.request.noise(position).to(q.device)).softmax(-1)


class Draft(ABC):
    """One request's draft while it is extended.

    Attributes:
        uncached_prefix: the draft model's ids before the root that its row lacks; the first pass forwards and commits
            them.
        next_tree: the tree to forward next, in the draft model's ids.
        keeps: the path of ``next_tree`` that is committed in the draft model's cache.
    """

    keeps: Sequence[int] = ()

    def __init__(self, request: Request, pending: Sequence[int], num_tokens: int) -> None:
        self.is_done = False
        self.uncached_prefix = pending[:-1]
        self.next_tree = _root(pending[-1])
        self._request = request
        self._num_left = num_tokens

    @abstractmethod
    def receive(self, rows: NodeOutputs) -> None:
        """Extend the draft by the draft model's logits at the wanted nodes of ``next_tree``."""

    @abstractmethod
    def tree(self) -> DraftTree:
        """Return the finished draft, in the target's ids."""


def _root(token: int) -> DraftTree:
    """Return a tree of one node, whose logits are wanted."""
    tree = DraftTree(token)
    tree.wanted = [ROOT]
    return tree


class ChainDraft(Draft):
    """A chain of candidates; each is cached by the draft model when it is forwarded."""

    keeps = (ROOT,)

    def __init__(
        self,
        request: Request,
        pending: Sequence[int],
        num_tokens: int,
        distribution: DraftDistribution,
        confidence: float,
    ) -> None:
        super().__init__(request, pending, num_tokens)
        self._distribution = distribution
        self._confidence = confidence
        self._tree = DraftTree(request.root)

    def receive(self, rows: NodeOutputs) -> None:
        last = len(self._tree) - 1
        probs = self._distribution.at(self._tree.path(last), rows.logits(ROOT))
        if probs is None:
            self.is_done = True
            return
        token = self._request.draw(probs) if self._distribution.samples else int(probs.argmax())
        self._tree.add(last, token, q=probs if self._distribution.samples else None)
        self._num_left -= 1
        # The token stays in the draft even if it is weak: discarding a draw would make its q untrue.
        is_weak = float(probs[token]) < self._confidence
        draft_id = self._distribution.vocabulary.to_draft(token)
        self.is_done = self._num_left == 0 or is_weak or token in self._request.eos_token_ids or draft_id is None
        if draft_id is not None:
            self.next_tree = _root(draft_id)

    def tree(self) -> DraftTree:
        return self._tree


class TextDraft(Draft):
    """A chain of the draft model's most likely tokens, decoded to text and encoded with the target's tokenizer."""

    keeps = (ROOT,)

    def __init__(
        self,
        request: Request,
        pending: Sequence[int],
        num_tokens: int,
        vocabulary: TextVocabulary,
        context: Sequence[int],
        confidence: float,
    ) -> None:
        super().__init__(request, pending, num_tokens)
        self._vocabulary = vocabulary
        self._context = context
        self._confidence = confidence
        self._drafted: list[int] = []
        self._most = num_tokens

    def receive(self, rows: NodeOutputs) -> None:
        logits = rows.logits(ROOT)
        check_logits(logits)
        self._drafted.append(int(logits.argmax()))
        self._num_left -= 1
        self.is_done = self._num_left == 0 or float(softmax(logits).max()) < self._confidence
        self.next_tree = _root(self._drafted[-1])

    def tree(self) -> DraftTree:
        tree = DraftTree(self._request.root)
        tokens = self._vocabulary.to_target(self._request.tokens, self._context, self._drafted)
        tree.add_chain(ROOT, self._request.until_eos(tokens[: self._most]))
        return tree


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """The options of a beam: width, maximum nodes, minimum confidence, and the siblings of a sampled candidate."""

    width: int
    num_nodes: int
    confidence: float
    siblings: Literal["chosen", "without_replacement", "with_replacement"]


class BeamDraft(Draft):
    """A tree: at each level, the most likely nodes get several children.

    Chosen candidates follow EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): a beam by cumulative probability,
    from which the best nodes are taken at the end. Sampled candidates are never dropped, since a rule that reads q must
    see every draw. The siblings of a sampled token are either the most likely tokens, tried after it (the optimal order
    for fixed guesses and one draw: Hu et al. 2025, arXiv 2502.18779), or further draws.
    """

    def __init__(
        self,
        request: Request,
        pending: Sequence[int],
        num_tokens: int,
        distribution: DraftDistribution,
        options: BeamOptions,
    ) -> None:
        super().__init__(request, pending, num_tokens)
        self._distribution = distribution
        self._options = options
        self._tree = DraftTree(request.root)
        self._likelihood = {ROOT: 1.0}
        self._level = [ROOT]  # the nodes to extend
        self._fed = {ROOT: ROOT}  # each node's place in ``next_tree``

    def receive(self, rows: NodeOutputs) -> None:
        children: list[int] = []
        for node in self._level:
            probs = self._distribution.at(self._tree.path(node), rows.logits(self._fed[node]))
            if probs is not None and self._has_room():
                children += self._write_below(node, probs)
        self._num_left -= 1
        children.sort(key=self._likelihood.__getitem__, reverse=True)
        self._level = [
            node
            for node in children[: self._options.width]
            if self._tree.tokens[node] not in self._request.eos_token_ids
            and self._distribution.vocabulary.to_draft(self._tree.tokens[node]) is not None
        ]
        self.is_done = self._num_left == 0 or not self._level or not self._has_room()
        if not self.is_done:
            self._ask_next()

    def _has_room(self) -> bool:
        """Return True if another level fits; always for chosen candidates, of which the best are taken at the end."""
        return not self._distribution.samples or len(self._tree) - 1 + self._options.width <= self._options.num_nodes

    def _write_below(self, node: int, probs: torch.Tensor) -> list[int]:
        """Add a node's candidates; return the new ones that are likely enough to be extended."""
        known = len(self._tree)
        for token, q in self._candidates(probs):
            child = self._tree.add(node, token, q=q)
            self._likelihood.setdefault(child, self._likelihood[node] * float(probs[token]))
        return [
            child
            for child in range(known, len(self._tree))
            if probs[self._tree.tokens[child]] >= self._options.confidence
        ]

    def _candidates(self, probs: torch.Tensor) -> list[tuple[int, torch.Tensor | None]]:
        """Return tokens in the order in which a rule tries them, each with the distribution that it was drawn from."""
        width = min(self._options.width, int((probs > 0).sum()))
        if not self._distribution.samples:
            return [(token, None) for token in probs.topk(width).indices.tolist()]
        if self._options.siblings == "chosen":
            return draw_with_most_likely(self._request, probs, width - 1)
        drawn: list[tuple[int, torch.Tensor | None]] = []
        for _ in range(width if self._options.siblings == "without_replacement" else self._options.width):
            token = self._request.draw(probs)
            drawn.append((token, probs))
            if self._options.siblings == "without_replacement" and len(drawn) < width:
                probs = without(probs, torch.tensor([token], device=probs.device))
        return drawn

    def _ask_next(self) -> None:
        """Add the level to the tree to forward, which holds all extended nodes: none of them is cached.

        Forwarding them again at each level costs a small model little, and needs no cache with branches.
        """
        for node in self._level:
            draft_id = self._distribution.vocabulary.to_draft(self._tree.tokens[node])
            assert draft_id is not None, "nodes without an id of the draft model are not extended"
            self._fed[node] = self.next_tree.add(self._fed[self._tree.parents[node]], draft_id)
        self.next_tree.wanted = sorted({self._fed[node] for node in self._level})

    def tree(self) -> DraftTree:
        if self._distribution.samples or len(self._tree) - 1 <= self._options.num_nodes:
            return self._tree
        # Likelihood never rises along a path, so the best nodes are connected; of equals the shallower come first.
        best = sorted(range(1, len(self._tree)), key=self._likelihood.__getitem__, reverse=True)
        return self._tree.subtree(sorted(best[: self._options.num_nodes]))


def draw_with_most_likely(
    request: Request, probs: torch.Tensor, num_chosen: int
) -> list[tuple[int, torch.Tensor | None]]:
    """Return a token drawn from ``probs`` without its most likely tokens, with its q, and these chosen tokens after it.

    The optimal order for fixed guesses and one draw: Hu et al. 2025, arXiv 2502.18779.
    """
    most_likely = probs.topk(num_chosen).indices
    q = without(probs, most_likely)
    return [(request.draw(q), q), *((token, None) for token in most_likely.tolist())]


def without(probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the distribution conditional on none of these tokens."""
    rest = probs.index_fill(0, tokens, 0.0)
    return rest / rest.sum()


def check_logits(logits: torch.Tensor) -> None:
    """Raise NumericsError if a draft model's logits are NaN or infinite."""
    if not logits.max().isfinite():
        raise NumericsError("the draft model's logits are NaN or infinite: check its weights and dtype")
