"""The verifier's contract.

A verifier reads a draft tree and the target's distributions at its nodes. It returns the accepted path and the tokens
to emit: the path's and one bonus token.

Notation, as in the papers: p is the target's distribution at a node; q is the distribution that a candidate was drawn
from (one-hot for a chosen candidate); r is the residual of p after the earlier draws at a node have been rejected.

Laws:
- A lossless verifier emits text with the target's own distribution, for any tree. Others have ``lossless = False``.
- A rule that reads q (``reads_q``) only gets trees whose draws have their true q; ``match`` verifies all others.
- The path starts at the root, each node is a child of the one before it and a candidate.
- The emitted tokens are the path's, excluding the root, and one more: NO_TOKEN if the last node has no distribution.
- Randomness comes from the given source alone. The noise of a position is used for the token at that position only.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from specdec.configuration import Configuration
from specdec.errors import PluginError
from specdec.sampling.distributions import NodeDistributions
from specdec.sampling.randomness import RandomSource
from specdec.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes, root first, and the emitted tokens: one per node below the root, and the bonus token."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]

    def check(self, tree: DraftTree) -> None:
        """Raise PluginError, naming the law, if the verdict breaks one."""
        if self.path[:1] != (ROOT,) or len(self.tokens) != len(self.path):
            raise PluginError(
                f"illegal verdict: path {self.path} from the root needs as many tokens, not {self.tokens}"
            )
        for parent, node, token in zip(self.path, self.path[1:], self.tokens, strict=False):
            if tree.child(parent, token) != node:
                raise PluginError(f"illegal verdict: node {node} is not the candidate for token {token} below {parent}")


class Verifier(Configuration, ABC):
    """An acceptance rule: configuration and one method.

    ``lossless`` and ``reads_q`` must be declared. A wrong promise changes the text silently:
    ``specdec.testing.check_verifier`` tests ``lossless`` and, of lossless rules, ``stays_on_the_text``.

    Attributes:
        lossless: the emitted text has the target's own distribution.
        reads_q: the rule reads the distributions of draws, which must be true.
        stays_on_the_text: the rule reads the target at accepted nodes only, in order, so that logits processors may
            have state. Each node's processors run once, however often it is read.
        is_keyed: each token is a function of its distribution and the noise of its position alone, so the text doesn't
            depend on the drafts, and a proposer may know that noise.
    """

    lossless: ClassVar[bool]
    reads_q: ClassVar[bool]
    stays_on_the_text: ClassVar[bool] = False
    is_keyed: ClassVar[bool] = False

    @abstractmethod
    def verify(self, tree: DraftTree, target: NodeDistributions, source: RandomSource) -> Verdict:
        """Return the accepted path and the emitted tokens.

        Args:
            tree: ``tree.draws`` has the candidates below each node, in the order in which to try them; ``tree.child``
                finds one by its token.
            target: ``probs(node)`` is the distribution after a node's path, None where there is none; ``draw(node)`` is
                the token that plain decoding emits there.
            source: for choices that ``draw`` doesn't make, such as a token of a residual distribution.
        """


def probability(q: torch.Tensor | None, token: int) -> float:
    """q(token); 1 for a chosen draw, which has no q."""
    return 1.0 if q is None else float(q[token])


def residual(r: torch.Tensor, q: torch.Tensor | None, token: int) -> torch.Tensor:
    """(r - q)+ after the rejected draw of ``token``, ``(vocab,)``, not normalised; ``r`` may be scaled down."""
    if q is None:  # one-hot at the token
        return r.index_fill(0, torch.tensor(token, device=r.device), 0.0)
    return (r - q.to(r.device)).clamp_min(0.0)
