"""Sample-and-match: sample from the target and follow the child that matches."""

from typing import ClassVar

from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.randomness import RandomSource
from specdec.tree import ROOT, DraftTree
from specdec.verifiers.base import Verdict, Verifier


class MatchVerifier(Verifier):
    """Draw y ~ p at each node and descend to the child y, until there is none: that y is the bonus token.

    The emitted tokens are samples from the target, whose number depends on these tokens and on a tree drawn without
    knowledge of the noise: lossless for any tree. With noise keyed by position the text equals plain decoding token for
    token (drafter invariance: Daliri, Musco and Suresh 2024, arXiv 2408.07978). For chosen candidates no rule accepts
    more: tau = 1 + sum over nodes v of P(path(v)).
    """

    lossless: ClassVar[bool] = True
    reads_q: ClassVar[bool] = False
    stays_on_the_text: ClassVar[bool] = True
    is_keyed: ClassVar[bool] = True

    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        node: int | None = ROOT
        path: list[int] = []
        tokens: list[int] = []
        while node is not None:
            path.append(node)
            tokens.append(target.draw(node))
            node = tree.child(node, tokens[-1])
        return Verdict(tuple(path), tuple(tokens))
