"""A public fake: a "model" that is nothing but a known law, for tests and plug-in authors.

It reads its context out of the layout's visibility, as attention would, so a wrong mask gives wrong tokens here too.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specdec.backends.base import Backend, Compile, Output
from specdec.errors import ModelError
from specdec.layout import Layout, Shapes

Law = Callable[[tuple[int, ...]], Sequence[float]]


class ToyModel:
    """A next-token law over a small vocabulary, given as a function of the whole context.

    ``ToyModel.random(vocab_size, order, seed)`` makes one whose law depends on the last ``order`` tokens.
    """

    def __init__(self, law: Law, vocab_size: int, max_positions: int | None = None) -> None:
        self.law = law
        self.vocab_size = vocab_size
        self.max_positions = max_positions

    @classmethod
    def random(cls, vocab_size: int = 8, order: int = 2, seed: int = 0, sharpness: float = 2.0) -> "ToyModel":
        """Independent laws per context of ``order`` tokens: softmax of ``sharpness`` times standard normals."""

        def law(context: tuple[int, ...]) -> list[float]:
            scores = np.random.default_rng([seed, *context[-order:]]).normal(size=vocab_size) * sharpness
            weights = np.exp(scores - scores.max())
            return list(weights / weights.sum())

        return cls(law, vocab_size)


class ToyBackend(Backend):
    """Looks the law up for each node's visible context."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model
        self._rows: list[list[int]] = []  # committed tokens by slot
        self._layout: Layout | None = None
        self.shapes = Shapes(
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            takes_trees=True,
            attention={"full_attention": None},
            dtype=torch.float64,
            device=torch.device("cpu"),
        )

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, ToyModel)

    @classmethod
    def load(cls, model: object, compile_masks: Compile) -> "ToyBackend":
        if not isinstance(model, ToyModel):
            raise ModelError(f"the toy backend drives a ToyModel, not a {type(model).__name__}")
        return cls(model)

    def prefill(self, tokens: Sequence[int], capacity: int) -> Output:
        self._rows.append(list(tokens))
        return Output(self._logits(tuple(tokens))[None, None], columns=[0])

    def forward(self, layout: Layout) -> Output:
        self._layout = layout
        rows = [[self._node(layout, row, node) for node in layout.columns] for row in range(len(self._rows))]
        return Output(torch.stack([torch.stack(row) for row in rows]), layout.columns)

    def _node(self, layout: Layout, row: int, node: int) -> torch.Tensor:
        """The logits at a node, whose context is what it sees, in the order of positions."""
        length = layout.lengths[row]
        if not layout.masks:  # one row, one node: it sees everything
            return self._logits((*self._rows[row], int(layout.input_ids[row, 0])))
        slots = torch.nonzero(layout.masks["full_attention"][row, 0, node] == 0).flatten().tolist()
        seen = {
            (slot if slot < length else int(layout.positions[row, slot - length])): (
                self._rows[row][slot] if slot < length else int(layout.input_ids[row, slot - length])
            )
            for slot in slots
        }
        return self._logits(tuple(seen[position] for position in sorted(seen)))

    def _logits(self, context: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(list(self._model.law(context)), dtype=torch.float64).log()

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        assert self._layout is not None, "keep follows a forward"
        for row, path in enumerate(paths):
            self._rows[row] += self._layout.input_ids[row, list(path)].tolist()

    def rollback(self, row: int, length: int) -> None:
        del self._rows[row][length:]

    def release(self, row: int) -> None:
        self._rows[row] = self._rows[-1]
        self._rows.pop()

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def row_bytes(self) -> int:
        return 0
