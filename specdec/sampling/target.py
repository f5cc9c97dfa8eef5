"""Logits to distribution to token: the target's answers at a node, behind every processor on the node's own path."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager
from typing import Protocol

import torch

from specdec.errors import NumericsError, SpecdecError, failure
from specdec.sampling.processors import Warper
from specdec.sampling.randomness import Chances
from specdec.sampling.topk import greatest_of
from specdec.tree import DraftTree

NO_TOKEN = -1


class Rows(Protocol):
    """One sequence's part of a forward pass."""

    def argmax(self, node: int) -> int:
        """The lowest id of greatest logit at a node."""

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, shape ``(vocab,)``."""

    def is_finite(self, node: int) -> bool:
        """Return True if the greatest logit at a node is finite."""

    def likeliest(self, node: int, k: int) -> tuple[tuple[int, float], ...]:
        """The ``k`` likeliest next tokens at a node by the raw logits, likeliest first, each with its probability."""

    def top_logits(self, node: int, k: int) -> tuple[tuple[int, float], ...]:
        """The ``k`` greatest raw logits at a node, greatest first, as pairs of token and logit."""

    def hidden(self, node: int, layers: ReadOnly[int]) -> torch.Tensor:
        """The hidden states of some layers at a node, (layers, size)."""


class Target(Protocol):
    """The target as a verifier sees it: the questions that it may ask about one draft tree."""

    def draw(self, node: int) -> int:
        """The token the target emits at a node: the argmax at temperature 0, else a keyed draw from its distribution.

        NO_TOKEN, which matches no child, where there is no answer.
        """

    def law(self, node: int) -> torch.Tensor | None:
        """The distribution p of the next token at a node, shape ``(vocab,)``, float32 or better, sums to one.

        None where there is no answer. Not to be written to.
        """

    def position(self, node: int) -> int:
        """The absolute position of the next token at a node."""


class SequenceTarget:
    """The target's answers for one sequence's tree, each evaluated when it is first asked for.

    The accepted path asks for one answer per emitted token, which is what plain decoding would compute. ``faults`` says
    why there is none where there is none.
    """

    def __init__(self, tree: DraftTree, rows: Rows, committed: ReadOnly[int], warper: Warper, chances: Chances) -> None:
        self._tree = tree
        self._rows = rows
        self._committed = committed
        self._length = len(committed)
        self._warper = warper
        self._chances = chances
        self._drawn: dict[int, int] = {}
        self._laws: dict[int, torch.Tensor | None] = {}
        self._shown: dict[int, torch.Tensor] = {}
        self.faults: dict[int, SpecdecError] = {}

    def draw(self, node: int) -> int:
        if node not in self._drawn:
            with self._noting_faults(node):
                self._drawn[node] = self._draw(node)
        return self._drawn.setdefault(node, NO_TOKEN)

    def law(self, node: int) -> torch.Tensor | None:
        if node not in self._laws:
            with self._noting_faults(node):
                self._laws[node] = self._law(node)
        return self._laws.setdefault(node, None)

    def position(self, node: int) -> int:
        return self._length + self._tree.depths[node]

    def best_two(self, node: int, gumbel: Callable[[int, int], torch.Tensor]) -> torch.Tensor | None:
        """The two best scores at a node, in units of logits, shape ``(2,)``, on the model's device.

        Scores are those that the token was the greatest of; a drawn one's with ``gumbel(position, count)`` added. None
        where that can't be asked.
        """
        temperature = self._warper.temperature
        if self._warper.is_plain_argmax:
            scores = self._rows.logits(node)
        elif not self._warper.is_pure:  # a caller's own processor is asked once about a position
            return None
        elif temperature == 0.0:
            scores = self._scores(node)
        else:
            law = self._law(node)
            scores = (law.double().log() + gumbel(self.position(node), len(law)).to(law.device)) * temperature
        return greatest_of(scores, 2)[0]

    def has_logits(self, node: int) -> bool:
        """True where the model gave numbers at a node."""
        return self._rows.is_finite(node)

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, ``(vocab,)``."""
        return self._rows.logits(node)

    def shown(self, node: int) -> torch.Tensor | None:
        """The scores at a node behind its processors, before temperature and truncation, ``(vocab,)``.

        None where they weren't asked for, and a caller's own processor would have to be asked again.
        """
        if node in self._shown:
            return self._shown[node]
        return self._constrained(node) if self._warper.is_pure else None

    def predictions(self, nodes: ReadOnly[int], wants_draws: bool) -> dict[int, int]:
        """The next token at some nodes, as a proposer may hear it; none where no token is possible.

        It is the draw where that is wanted, else the raw argmax. A caller's own processor that isn't path-pure is never
        asked about paths that the text may not take: the raw argmax stands in for the draw.
        """
        told = {node: self._predict(node, wants_draws) for node in nodes}
        return {node: token for node, token in told.items() if token is not None}

    def _predict(self, node: int, wants_draw: bool) -> int | None:
        if not self._rows.is_finite(node):
            return None
        if not wants_draw or self._warper.is_plain_argmax or not self._warper.is_pure:
            return self._rows.argmax(node)
        try:
            token = self._drawn[node] if node in self._drawn else self._draw(node)
        except Exception:  # a processor's, on a path that may never be written
            return None
        return None if token == NO_TOKEN else token

    def likeliest(self, nodes: ReadOnly[int], k: int) -> dict[int, tuple[tuple[int, float], ...]]:
        """The ``k`` likeliest next tokens at those of some nodes where the model gave numbers."""
        return {node: self._rows.likeliest(node, k) for node in nodes if self._rows.is_finite(node)}

    def top_logits(self, nodes: ReadOnly[int], k: int) -> dict[int, tuple[tuple[int, float], ...]]:
        """The ``k`` greatest raw logits at those of some nodes where the model gave numbers."""
        return {node: self._rows.top_logits(node, k) for node in nodes if self._rows.is_finite(node)}

    def hidden(self, nodes: ReadOnly[int], layers: ReadOnly[int]) -> dict[int, torch.Tensor]:
        """The hidden states of some layers at some nodes, (layers, size) each."""
        return {node: self._rows.hidden(node, layers) for node in nodes}

    @contextmanager
    def _noting_faults(self, node: int) -> Iterator[None]:
        try:
            yield
        except SpecdecError as error:
            self.faults[node] = error
        except Exception as error:  # a caller's own processor
            self.faults[node] = failure("a logits processor", error)

    def _draw(self, node: int) -> int:
        if self._warper.is_plain_argmax:
            self._check_logits(node)
            return self._rows.argmax(node)
        if self._warper.temperature == 0.0:
            return int(self._scores(node).argmax())
        return self._chances.categorical(self._scores(node).softmax(-1), self.position(node))

    def _law(self, node: int) -> torch.Tensor:
        scores = self._scores(node)
        if self._warper.temperature == 0.0:
            return torch.zeros_like(scores).index_fill_(0, scores.argmax(), 1.0)
        return scores.softmax(-1)

    def _scores(self, node: int) -> torch.Tensor:
        """The warped scores at the end of the node's path."""
        self._check_logits(node)
        scores = self._warper.warped(self._path(node), self._constrained(node))
        if not scores.max().isfinite():
            raise NumericsError(
                f"the logits processors leave no token possible at position {self.position(node)} (their greatest "
                f"score is {float(scores.max())}): loosen the constraints, or check your own processors"
            )
        return scores

    def _constrained(self, node: int) -> torch.Tensor:
        self._shown[node] = self._warper.constrained(self._path(node), self._rows.logits(node))
        return self._shown[node]

    def _path(self, node: int) -> list[int]:
        """The text up to a node; the request may have grown since."""
        is_read = self._warper.has_processors
        return [*self._committed[: self._length], *self._tree.path(node)] if is_read else []

    def _check_logits(self, node: int) -> None:
        if not self._rows.is_finite(node):
            raise NumericsError(
                f"the logits for position {self.position(node)} are NaN or infinite. Check the model's weights and "
                "dtype (float16 overflows where bfloat16 and float32 do not)"
            )
