"""The verifier's contract.

A verifier reads a draft tree and the target's answers at its nodes, and returns the accepted path with the tokens to
emit: those of the path and one bonus token.

Laws:
- A lossless verifier emits text with the target's own law, whatever the tree. One that is not says so in its type
  (``lossless = False``).
- The path starts at the root, each node is a child of the one before it and a candidate.
- The emitted tokens are the path's, the root aside, and one more.
- Randomness comes from the given source alone.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from specdec.errors import PluginError
from specdec.randomness import Randomness
from specdec.sampling import Target
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
    """An acceptance rule: configuration and one method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lossless: ClassVar[bool]

    @abstractmethod
    def verify(self, tree: DraftTree, target: Target, randomness: Randomness) -> Verdict:
        """Decide which path is kept and what is emitted."""
