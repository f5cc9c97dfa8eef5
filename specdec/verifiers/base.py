"""The verifier's contract.

A verifier reads a draft tree and the target's answers at its nodes, and returns the accepted path with the tokens to
emit: those of the path and one bonus token.

Notation, as in the papers: p is the target's distribution at a node, q the one that a candidate was drawn from (one-hot
for a candidate that was simply chosen), r the residual: what is left of p once the earlier draws at a node have failed.

Laws:
- A lossless verifier emits text with the target's own distribution, whatever the tree. One that is not says so in its
  type (``lossless = False``).
- A rule that reads q (``reads_q``) is only asked about trees whose draws carry the distributions that they were truly
  drawn from; the core lets ``match`` decide about all others.
- The path starts at the root, each node is a child of the one before it and a candidate.
- The emitted tokens are the path's, the root aside, and one more; NO_TOKEN in its place where the target has no answer.
- Randomness comes from the given source alone. The noise of a position serves the token at that position and nothing
  else.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict

from specdec.errors import PluginError
from specdec.sampling.randomness import Chances
from specdec.sampling.target import Target
from specdec.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted nodes, root first, and the emitted tokens: one per accepted node below the root, and a bonus."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]

    def check(self, tree: DraftTree) -> None:
        """Refuse a verdict that breaks a verifier's laws.

        Raises:
            PluginError: saying which law.
        """
        if self.path[:1] != (ROOT,) or len(self.tokens) != len(self.path):
            raise PluginError(
                f"illegal verdict: path {self.path} from the root needs as many tokens, not {self.tokens}"
            )
        for parent, node, token in zip(self.path, self.path[1:], self.tokens, strict=False):
            if tree.child(parent, token) != node:
                raise PluginError(f"illegal verdict: node {node} is not the candidate for token {token} below {parent}")


class Verifier(BaseModel, ABC):
    """An acceptance rule: configuration and one method.

    Attributes:
        lossless: the emitted text has the target's own distribution.
        reads_q: the rule relies on the distributions of draws, so it must not be given untrue ones.
        stays_on_the_text: the target is asked about accepted nodes only, each once and in order, so that logits
            processors may keep state.
        is_keyed: the text is a function of the noise keyed by position, so that a proposer may know that noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lossless: ClassVar[bool]
    reads_q: ClassVar[bool]
    stays_on_the_text: ClassVar[bool] = False
    is_keyed: ClassVar[bool] = False

    @abstractmethod
    def verify(self, tree: DraftTree, target: Target, chances: Chances) -> Verdict:
        """Decide which path is kept and what is emitted."""


def probability(q: torch.Tensor | None, token: int) -> float:
    """q(token), where a draw without a distribution was chosen."""
    return 1.0 if q is None else float(q[token])


def residual(r: torch.Tensor, q: torch.Tensor | None, token: int) -> torch.Tensor:
    """(r - q)+ for a draw of ``token``: the mass that the draw can't have served, shape ``(vocab,)``, not normalised.

    ``r`` may be a distribution or a distribution scaled down.
    """
    if q is None:  # one-hot at the token
        return r.index_fill(0, torch.tensor(token, device=r.device), 0.0)
    return (r - q.to(r.device)).clamp_min(0.0)
