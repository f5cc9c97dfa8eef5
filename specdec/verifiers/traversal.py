"""Traversal verification: decide about whole paths, from the leaves up; on a chain it is block verification."""

from typing import ClassVar

import torch

from specdec.sampling.randomness import Chances
from specdec.sampling.target import NO_TOKEN, Target
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier, probability, residual


class TraversalVerifier(Verifier):
    """Accept a node only after its subtree had its chance, with the joint ratio of its path capped at one.

    Chains: block verification, Sun et al. 2024, arXiv 2403.10444, algorithm 2, never below ``rejection`` in expected
    accepted length. Trees: traversal verification, Weng et al. 2025, arXiv 2505.12398, in recursive form. It needs the
    target's distribution at every visited node, and each subtree drawn from its own q whatever its siblings are.
    """

    lossless: ClassVar[bool] = True
    reads_q: ClassVar[bool] = True

    def verify(self, tree: DraftTree, target: Target, chances: Chances) -> Verdict:
        verdict = _Traversal(tree, target, chances).visit(ROOT, 1.0)
        assert verdict is not None, "the root is accepted for certain"
        return verdict


class _Traversal:
    def __init__(self, tree: DraftTree, target: Target, chances: Chances) -> None:
        self._tree = tree
        self._target = target
        self._chances = chances

    def visit(self, node: int, a: float) -> Verdict | None:
        """Succeeds with probability exactly ``a``, and then the target's distribution is emitted below ``node``.

        Induction on height: a child x is drawn with q(x) and succeeds with b = min(1, a r(x) / q(x)), which serves
        min(q, a r) of the wanted mass a r. What is left has the total s, all draws fail with probability s + 1 - a,
        and the same contract holds again for a <- s / (s + 1 - a), r <- (a r - q)+ / s.
        """
        r = self._target.law(node)
        if r is None:
            return self._stop(node, NO_TOKEN) if self._chances.accept(a, 1.0) else None
        for draw in self._tree.draws.get(node, ()):
            token = self._tree.tokens[draw.child]
            wanted, q = a * float(r[token]), probability(draw.q, token)
            if wanted > 0.0:
                verdict = self.visit(draw.child, wanted / q if wanted < q else 1.0)
                if verdict is not None:
                    return verdict
            left = residual(a * r, draw.q, token)
            s = float(left.sum())
            if s == 0.0:  # the draws have served all that was wanted
                return self._bonus(node, r) if node == ROOT else None  # at the root only rounding leads here
            a, r = s / (s + (1.0 - a)), left / s
        return self._bonus(node, r) if self._chances.accept(a, 1.0) else None

    def _bonus(self, node: int, r: torch.Tensor) -> Verdict:
        return self._stop(node, self._chances.categorical(r, self._target.position(node)))

    def _stop(self, node: int, bonus: int) -> Verdict:
        """The verdict that accepts the path to ``node`` and ends with ``bonus``."""
        nodes = self._tree.lineage(node)
        return Verdict(nodes, (*(self._tree.tokens[node] for node in nodes[1:]), bonus))
