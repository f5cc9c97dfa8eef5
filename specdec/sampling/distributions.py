"""Logits to probabilities to tokens: the target's distributions at the nodes of a draft tree."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from specdec.constraints.base import ConstraintError
from specdec.constraints.path_state import PathState
from specdec.errors import Guard, NumericsError, RequestError, SpecdecError
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import RandomSource
from specdec.sampling.topk import Top, top_two
from specdec.tree import DraftTree

NO_TOKEN = -1
T = TypeVar("T")


class NodeOutputs(Protocol):
    """The model's output at the nodes of one tree."""

    def argmax(self, node: int) -> int:
        """The id of the largest logit, the lowest of equals."""

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits, ``(vocab,)``."""

    def is_finite(self, node: int) -> bool:
        """Return True if the largest logit is finite."""

    def drawn(self, node: int) -> int | None:
        """The token that the pass has drawn; None if it has drawn none."""

    def top_probs(self, nodes: Sequence[int], k: int) -> dict[int, Top]:
        """The top-k tokens by raw logits and their probabilities, at those of some nodes whose logits are finite."""

    def top_logits(self, nodes: Sequence[int], k: int) -> dict[int, Top]:
        """The top-k tokens by raw logits and these logits, at those of some nodes whose logits are finite."""

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """The hidden states of some layers at some nodes, ``(nodes, layers, size)``."""


class NodeDistributions:
    """The target's distribution of the next token at each node of a draft tree, after every logits processor.

    A verifier calls ``draw``, ``probs`` and ``position``. Each node is evaluated when it is first read, on the node's
    own path, and its processors run once, so the accepted path costs what plain decoding does.

    Args:
        committed: the text up to the tree's root.
        constraint: the constraint's state at the root; None if the text is free.

    Attributes:
        outputs: the model's output at the tree's nodes, before all processors.
        faults: by node, why the node has no distribution.
    """

    def __init__(
        self,
        tree: DraftTree,
        outputs: NodeOutputs,
        committed: Sequence[int],
        warper: Warper,
        source: RandomSource,
        constraint: PathState | None = None,
    ) -> None:
        self._tree = tree
        self.outputs = outputs
        self._committed = committed
        self._length = len(committed)
        self._warper = warper
        self._source = source
        self._constraint = constraint
        self._drawn: dict[int, int] = {}
        self._probs: dict[int, torch.Tensor | None] = {}
        self._scores: dict[int, torch.Tensor] = {}
        self.faults: dict[int, SpecdecError] = {}

    def draw(self, node: int) -> int:
        """The token that the target emits at a node: the argmax at temperature 0, else a draw keyed by position.

        NO_TOKEN, which matches no child, if the node has no distribution.
        """
        return self._once(node, self._drawn, self._draw, NO_TOKEN)

    def probs(self, node: int) -> torch.Tensor | None:
        """The distribution p of the next token at a node, ``(vocab,)``, float32 or better; read-only.

        None if the node has no distribution.
        """
        return self._once(node, self._probs, self._distribution, None)

    def _once(self, node: int, known: dict[int, T], find: Callable[[int], T], failed: T) -> T:
        """Return what was found at a node before, or is now; ``failed`` if a processor raises, which is a fault."""
        if node not in known:
            with Guard("a logits processor") as guard:
                known[node] = find(node)
            if guard.error is not None:
                known[node], self.faults[node] = failed, guard.error
        return known[node]

    def position(self, node: int) -> int:
        """The absolute position of the next token at a node."""
        return self._length + self._tree.depths[node]

    def best_two(self, node: int, gumbel: Callable[[int, int], torch.Tensor]) -> torch.Tensor | None:
        """The two largest scores at a node, in units of logits, ``(2,)``, on the model's device.

        The scores are those whose argmax is the token: for a draw, with ``gumbel(position, count)`` added. None if a
        processor of the caller's may have state.
        """
        temperature = self._warper.temperature
        if self._warper.is_plain_argmax:
            scores = self._masked(node, self.outputs.logits(node))
        elif not self._warper.is_pure:
            return None
        elif temperature == 0.0:
            scores = self._warped(node)
        else:
            probs = self._distribution(node)
            scores = (probs.double().log() + gumbel(self.position(node), len(probs)).to(probs.device)) * temperature
        return top_two(scores)

    def scores(self, node: int) -> torch.Tensor | None:
        """The scores at a node after its processors, before temperature and truncation, ``(vocab,)``.

        None if they weren't computed yet and a processor of the caller's may have state.
        """
        return self._processed(node) if node in self._scores or self._warper.is_pure else None

    def predictions(self, nodes: Sequence[int], wants_draws: bool) -> dict[int, int]:
        """The next token at some nodes: the draw if ``wants_draws``, else the raw argmax.

        Nodes without a possible token are left out, such as those on a path that the constraint refuses. A processor of
        the caller's that isn't path-pure never runs on paths that may not be written: the raw argmax replaces the draw.
        """
        found = {node: self._predict(node, wants_draws) for node in nodes}
        return {node: token for node, token in found.items() if token is not None}

    def _predict(self, node: int, wants_draw: bool) -> int | None:
        if not self.outputs.is_finite(node):
            return None
        is_argmax = self._warper.is_plain_argmax and self._constraint is None
        if not wants_draw or is_argmax or not self._warper.is_pure:
            return self.outputs.argmax(node)
        try:
            token = self._drawn[node] if node in self._drawn else self._draw(node)
        except Exception:  # a processor's, on a path that may never be written
            return None
        return None if token == NO_TOKEN else token

    def _draw(self, node: int) -> int:
        if self._warper.is_plain_argmax:
            self._check_logits(node)
            token = self.outputs.argmax(node)
            if self._constraint is None or self._constraint_at(node).allows(token):  # no need to fetch the logits
                return token
        if self._warper.temperature == 0.0:
            return int(self._warped(node).argmax())
        if (drawn := self.outputs.drawn(node)) is not None:
            self._check_logits(node)
            return drawn
        return self._source.categorical(self._warped(node).softmax(-1), self.position(node))

    def _distribution(self, node: int) -> torch.Tensor:
        scores = self._warped(node)
        if self._warper.temperature == 0.0:
            return torch.zeros_like(scores).index_fill_(0, scores.argmax(), 1.0)
        return scores.softmax(-1)

    def _warped(self, node: int) -> torch.Tensor:
        """The scores after temperature and truncation."""
        self._check_logits(node)
        scores = self._warper.warped(self._path(node), self._processed(node))
        if not scores.max().isfinite():
            is_refused = self._constraint is not None and float(scores.max()) == -torch.inf
            raise (ConstraintError if is_refused else NumericsError)(
                f"the {self._masks} leave no token possible at position {self.position(node)} (their largest "
                f"score is {float(scores.max())}): loosen the constraints, or check your own processors"
            )
        return scores

    def _processed(self, node: int) -> torch.Tensor:
        """The scores after the processors, which run once for a node: they may have state."""
        if node not in self._scores:
            scores = self._warper.constrained(self._path(node), self.outputs.logits(node))
            self._scores[node] = self._masked(node, scores)
        return self._scores[node]

    def _masked(self, node: int, scores: torch.Tensor) -> torch.Tensor:
        """The scores without the tokens that the constraint refuses at a node."""
        return scores if self._constraint is None else self._constraint_at(node).masked(scores)

    def _constraint_at(self, node: int) -> PathState:
        """The constraint's state after a node's own path."""
        assert self._constraint is not None, "called only under a constraint"
        state = self._constraint.after(self._tree.path(node))
        if state is None:
            raise RequestError(f"the constraint refuses the path to position {self.position(node)}")
        return state

    @property
    def _masks(self) -> str:
        return "logits processors" if self._constraint is None else "constraint and the logits processors"

    def _path(self, node: int) -> list[int]:
        """The text up to a node. ``committed`` may have grown since the tree was verified."""
        is_read = self._warper.has_processors
        return [*self._committed[: self._length], *self._tree.path(node)] if is_read else []

    def _check_logits(self, node: int) -> None:
        if not self.outputs.is_finite(node):
            raise NumericsError(
                f"the logits for position {self.position(node)} are NaN or infinite. Check the model's weights and "
                "dtype (float16 overflows where bfloat16 and float32 do not)"
            )
