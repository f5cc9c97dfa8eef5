"""Traversal verification: accept whole paths, from the leaves up; block verification on chains."""

from typing import ClassVar

import torch

from specdec.sampling.distributions import NO_TOKEN, NodeDistributions
from specdec.sampling.randomness import RandomSource
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier, probability, residual


class TraversalVerifier(Verifier):
    """Try a node's subtree before the node itself, with the joint ratio of the path capped at one.

    Chains: block verification, Sun et al. 2024, arXiv 2403.10444, algorithm 2, never below ``rejection`` in expected
    accepted length. Trees: traversal verification, Weng et al. 2025, arXiv 2505.12398, in recursive form. Each
    subtree must be drawn from its own q, independently of its siblings.
    """

    lossless: ClassVar[bool] = True
    reads_q: ClassVar[bool] = True

    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        verdict = _Traversal(tree, target, source).visit(ROOT, 1.0)
        assert verdict is not None, "the root is accepted for certain"
        return verdict


class _Traversal:
    def __init__(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> None:
        self._tree = tree
        self._target = target
        self._source = source

    def visit(self, node: int, a: float) -> Verdict | None:
        """Succeed with probability ``a``, and then emit the target's distribution below ``node``.

        By induction on height: a child x is drawn with q(x) and succeeds with b = min(1, a r(x) / q(x)), which emits
        min(q, a r) of the wanted mass a r. The rest has total s, the draw fails with probability s + 1 - a, and the
        same contract holds for a <- s / (s + 1 - a), r <- (a r - q)+ / s.
        """
        r = self._target.probs(node)
        if r is None:
            return self._stop(node, NO_TOKEN) if self._source.accept(a, 1.0) else None
        for draw in self._tree.draws.get(node, ()):
            token = self._tree.tokens[draw.child]
            wanted, q = a * float(r[token]), probability(draw.q, token)
            if wanted > 0.0:
                verdict = self.visit(draw.child, wanted / q if wanted < q else 1.0)
                if verdict is not None:
                    return verdict
            left = residual(a * r, draw.q, token)
            s = float(left.sum())
            if s == 0.0:  # the draws have emitted all of the mass
                return self._bonus(node, r) if node == ROOT else None  # at the root only by rounding
            a, r = s / (s + (1.0 - a)), left / s
        return self._bonus(node, r) if self._source.accept(a, 1.0) else None

    def _bonus(self, node: int, r: torch.Tensor) -> Verdict:
        return self._stop(node, self._source.categorical(r, self._target.position(node)))

    def _stop(self, node: int, bonus: int) -> Verdict:
        """The verdict that accepts the path to ``node`` and ends with ``bonus``."""
        nodes = self._tree.lineage(node)
        return Verdict(nodes, (*(self._tree.tokens[node] for node in nodes[1:]), bonus))
