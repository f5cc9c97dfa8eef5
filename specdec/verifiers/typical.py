"""Typical acceptance: keep tokens that are plausible to the target. Lossy."""

import math
from typing import ClassVar

import torch
from pydantic import Field

from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.randomness import RandomSource
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier


class TypicalVerifier(Verifier):
    """Accept x at a node where p(x) > min(epsilon, delta * exp(-H(p))), and take the longest path of such nodes.

    Medusa, Cai et al. 2024, arXiv 2401.10774, section 3.3.1. The higher the target's entropy H (in nats), the more
    is accepted, so the text isn't the target's. At temperature 0 the rule is ``match``.
    """

    epsilon: float = Field(default=0.09, gt=0.0, le=1.0, description="probability that always suffices")
    delta: float = Field(default=0.3, gt=0.0, description="factor on exp(-entropy)")

    lossless: ClassVar[bool] = False
    reads_q: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        accepted, log_likelihood = [ROOT], {ROOT: 0.0}
        for node in accepted:  # grows during iteration, shallowest nodes first
            children = {draw.child for draw in tree.draws.get(node, ())}
            p = target.probs(node) if children else None
            if p is None:
                continue
            threshold = min(self.epsilon, self.delta * math.exp(-float(torch.special.entr(p).sum())))
            for child in sorted(children):
                likelihood = float(p[tree.tokens[child]])
                if likelihood > threshold:
                    accepted.append(child)
                    log_likelihood[child] = log_likelihood[node] + math.log(likelihood)
        last = max(accepted, key=lambda node: (tree.depths[node], log_likelihood[node]))
        path = tree.lineage(last)
        return Verdict(path, (*(tree.tokens[node] for node in path[1:]), target.draw(last)))
