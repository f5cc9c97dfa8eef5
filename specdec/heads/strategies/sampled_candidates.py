"""Candidates drawn from a head's distribution q, for acceptance rules that read it.

A level has an equal share of the nodes that are left. Its nodes are continued in the order of their probability: after
each, one token is drawn, and the most probable other tokens follow as chosen ones, as far as the share goes. So which
nodes a draft has may depend on earlier levels, and each token is drawn from its true q.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from specdec.heads.base import Continuations
from specdec.heads.drafting import TreeGrowth, tree_growth
from specdec.heads.strategies.candidates import Candidates, fetched
from specdec.heads.strategies.drafter import HeadDrafter, PaysByDrafter, own_drafters
from specdec.heads.strategies.engine import HeadEngine
from specdec.strategies.base import Drafter
from specdec.strategies.draft_model.drafts import draw_with_most_likely
from specdec.strategies.request import Request
from specdec.tree import ROOT, Budget, DraftTree


class DrawnDraft:
    """One request's draft while it is extended.

    Args:
        request: the request, at a temperature above 0.
        depth: maximum number of tokens on a path.
        num_nodes: maximum number of nodes.
        num_children: maximum number of candidates after a node.
        least: log-probability; less probable paths aren't continued. At most as many candidates are chosen after a node
            as have paths of at least this probability.

    Attributes:
        tree: the candidates so far, with the q of those that were drawn.
        is_finite: False once the head's log-probabilities were not finite.
    """

    def __init__(self, request: Request, depth: int, num_nodes: int, num_children: int, least: float) -> None:
        self.tree, self.is_finite = DraftTree(request.root), True
        self._request, self._num_levels, self._num_nodes = request, depth, num_nodes
        self._num_children, self._least = num_children, least
        self._log_probs = {ROOT: 0.0}
        self._nodes: list[int | None] = []  # of the growth's candidates; None for those that aren't in the draft

    def extend(self, fed: Sequence[int], tokens: np.ndarray, log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add a level.

        Args:
            fed: the candidates that were fed, the most probable first, numbered in the order in which they were
                returned; -1 for the root.
            tokens, log_probs: (fed, draft vocab), of the token after each.

        Returns:
            Tokens and log-probabilities, (fed, num_children), of the candidates after each; the log-probability of
            those that nothing follows is -inf.
        """
        found = np.zeros((len(fed), self._num_children), np.int64), np.full((len(fed), self._num_children), -np.inf)
        num_left = self._num_nodes + 1 - len(self.tree)
        share, self._num_levels = -(-num_left // max(1, self._num_levels)), self._num_levels - 1
        for place, candidate in enumerate(fed):
            parent = ROOT if candidate < 0 else self._nodes[candidate]
            children = list[int]()
            if parent is not None and self._num_levels >= 0:
                count = min(share, num_left, self._num_children)
                children = self._add_after(parent, tokens[place], log_probs[place], count)
            for rank, child in enumerate(children):
                found[0][place, rank] = token = self.tree.tokens[child]
                if token not in self._request.eos_token_ids:
                    found[1][place, rank] = self._log_probs[child] - self._log_probs[self.tree.parents[child]]
            share, num_left = share - len(children), num_left - len(children)
            self._nodes += [*children, *[None] * (self._num_children - len(children))]
        return found

    def _add_after(self, parent: int, tokens: np.ndarray, log_probs: np.ndarray, count: int) -> list[int]:
        """Draw and choose at most ``count`` candidates after a node; return their nodes."""
        above = self._log_probs[parent]
        if count < 1 or above < self._least or self.tree.tokens[parent] in self._request.eos_token_ids:
            return []
        probs = self._distribution(self.tree.path(parent), tokens, log_probs)
        if probs is None:
            return []
        count = min(count, 1 + int((above + probs.log() >= self._least).sum()), int((probs > 0).sum()))
        children = list[int]()
        for token, q in draw_with_most_likely(self._request, probs, count - 1):
            children.append(child := self.tree.add(parent, token, q=q))
            self._log_probs[child] = above + math.log(float(probs[token]))
        return children

    @torch.inference_mode(False)  # a caller's processor may change tensors that it keeps while it verifies
    def _distribution(self, path: Sequence[int], tokens: np.ndarray, log_probs: np.ndarray) -> torch.Tensor | None:
        """Return the head's distribution over the target's vocabulary, ``(vocab,)``, with the request's settings.

        None if they allow no token, or if a processor raises: the path may never be accepted.
        """
        if not np.isfinite(log_probs.max()):  # a maximum of NaN is NaN
            self.is_finite = False
            return None
        logits = torch.full((self._request.vocab_size,), -torch.inf)
        logits.numpy()[tokens] = log_probs
        try:
            probs = self._request.warp(path, logits)
        except Exception:  # a caller's own processor
            return None
        return probs if probs.isfinite().all() else None


def drawn_drafts(
    requests: Sequence[Request], depths: Sequence[int], sizes: Sequence[int], num_children: int, least: float
) -> list[DrawnDraft | None]:
    """Return an empty draft for each request at a temperature above 0; the arguments are those of ``DrawnDraft``."""
    return [
        DrawnDraft(request, depth, size, num_children, least) if request.temperature > 0.0 else None
        for request, depth, size in zip(requests, depths, sizes, strict=True)
    ]


class DrawnLevels:
    """The candidates of each level of a batch: drawn for some requests, the most probable for the others.

    Args:
        drafts: by request, None where candidates are chosen.
        num_children: candidates after each node.
    """

    def __init__(self, drafts: Sequence[DrawnDraft | None], num_children: int) -> None:
        self._drafts, self._num_children = drafts, num_children

    def choose(self, found: Continuations, fed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates after fed nodes, as ``TreeGrowth`` takes them."""
        best, places = torch.from_numpy(found.log_probs).topk(self._num_children)
        tokens, log_probs = np.take_along_axis(found.tokens, places.numpy(), -1), best.numpy()
        for row, draft in enumerate(self._drafts):
            if draft is not None:
                level = draft.extend(fed[row].tolist(), found.tokens[row], found.log_probs[row])
                tokens[row], log_probs[row] = level
        return tokens, log_probs


class DrawingEngine(HeadEngine):
    """Draws candidates where the head drafts alone at a temperature above 0.

    Its runner returns the whole draft vocabulary. In merges, candidates are chosen.
    """

    @torch.inference_mode()
    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        own, options = own_drafters(drafters), self._options
        if depths := self._depths(own, budgets):
            sizes = [
                min(options.num_nodes, budget.num_nodes)
                for drafter, budget in zip(own, budgets, strict=True)
                if drafter in depths
            ]
            requests = [drafter.request for drafter in depths]
            drawn = drawn_drafts(requests, [*depths.values()], sizes, self._num_children, self._least)
            growth = self._grown(depths, self._drawing(drawn, options.top_k))
            self._take(depths, drawn, fetched(growth.best(options.num_nodes)))
        return [drafter.tree(budget) for drafter, budget in zip(own, budgets, strict=True)]

    def _take(
        self, depths: Mapping[HeadDrafter, int], drawn: Sequence[DrawnDraft | None], chosen: Sequence[Candidates]
    ) -> None:
        """Give each request its draft."""
        for (drafter, depth), draft, candidates in zip(depths.items(), drawn, chosen, strict=True):
            if draft is None:
                candidates.depth, candidates.least = depth, self._least
                drafter.take(candidates)
            elif draft.is_finite:
                drafter.drawn = draft.tree
            else:
                drafter.leave_out()

    def _trees(
        self,
        depths: Mapping[HeadDrafter, int],
        width: int,
        num_nodes: int,
        pays: PaysByDrafter,
    ) -> Sequence[Candidates]:
        return fetched(self._grown(depths, self._drawing([None] * len(depths), width), pays).best(num_nodes))

    def _drawing(self, drafts: Sequence[DrawnDraft | None], width: int) -> Callable[..., TreeGrowth]:
        """Return what begins the growth of trees whose candidates are those of ``DrawnLevels``."""
        choose = DrawnLevels(drafts, self._num_children).choose
        return partial(tree_growth, width=min(width, self._num_children), choose=choose)
