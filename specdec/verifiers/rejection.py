"""Recursive rejection sampling: accept each draw with probability r/q, else continue with the residual."""

from typing import ClassVar

from specdec.sampling.distributions import NO_TOKEN, NodeDistributions
from specdec.sampling.randomness import RandomSource
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier, probability, residual


class RejectionVerifier(Verifier):
    """At each node try the draws in their order; after a rejection the target is r <- (r - q)+, normalised.

    One draw: Leviathan et al. 2022, arXiv 2211.17192, algorithm 1; Chen et al. 2023, arXiv 2302.01318. Several draws
    with replacement: SpecInfer, Miao et al. 2023, arXiv 2305.09781, algorithm 2. Without: Jeon et al. 2024, arXiv
    2402.14160. The residual doesn't depend on the rejected token, so a later draw may, if its q is conditional on it.
    For chosen candidates the outcome has the distribution of ``match``.
    """

    lossless: ClassVar[bool] = True
    reads_q: ClassVar[bool] = True
    stays_on_the_text: ClassVar[bool] = True

    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        node, path, tokens = ROOT, [ROOT], list[int]()
        while True:
            r = target.probs(node)
            if r is None:
                return Verdict(tuple(path), (*tokens, NO_TOKEN))
            accepted = None
            for draw in tree.draws.get(node, ()):
                token = tree.tokens[draw.child]
                if source.accept(float(r[token]), probability(draw.q, token)):
                    accepted = draw.child
                    break
                left = residual(r, draw.q, token)
                if not left.any():  # r = q, so only rounding rejected: r is still the distribution to draw from
                    break
                r = left / left.sum()
            if accepted is None:
                return Verdict(tuple(path), (*tokens, source.categorical(r, target.position(node))))
            node = accepted
            path.append(node)
            tokens.append(tree.tokens[node])
