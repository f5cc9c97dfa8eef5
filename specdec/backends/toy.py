"""A public fake for tests and plug-in authors: the model is a known distribution.

Nodes read their contexts through the layout's masks, as attention does, so a wrong mask gives wrong tokens.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from specdec.backends.base import NO_OPTIONS, Backend, BackendOptions, KVBlock
from specdec.backends.output import Output
from specdec.costs import Costs
from specdec.errors import ModelError
from specdec.layout import Compiler, Layout, Shapes

TokenDistribution = Callable[[tuple[int, ...]], Sequence[float]]


class ToyModel:
    """A next-token distribution over a small vocabulary, as a function of the whole context.

    Args:
        probs: context to probabilities, ``(vocab,)``.
    """

    def __init__(self, probs: TokenDistribution, vocab_size: int, max_positions: int | None = None) -> None:
        self.probs = probs
        self.vocab_size = vocab_size
        self.max_positions = max_positions

    @classmethod
    def random(cls, vocab_size: int = 8, order: int = 2, seed: int = 0, sharpness: float = 2.0) -> "ToyModel":
        """A distribution per context of ``order`` tokens: the softmax of ``sharpness`` times standard normals."""

        @cache
        def probs_after(last: tuple[int, ...]) -> tuple[float, ...]:
            scores = np.random.default_rng([seed, *last]).normal(size=vocab_size) * sharpness
            weights = np.exp(scores - scores.max())
            return tuple((weights / weights.sum()).tolist())

        return cls(lambda context: probs_after(context[-order:]), vocab_size)

    @classmethod
    def counting(cls, vocab_size: int = 10) -> "ToyModel":
        """Token i % vocab_size is the most likely at position i, and each next one is half as likely."""

        def probs(context: tuple[int, ...]) -> list[float]:
            weights = [0.5 ** ((token - len(context)) % vocab_size) for token in range(vocab_size)]
            return [weight / sum(weights) for weight in weights]

        return cls(probs, vocab_size)


class ToyBackend(Backend):
    """Looks up the distribution after each node's visible context; every pass costs the same."""

    holds_prefixes: bool = True

    costs: Costs = Costs(sizes=(1, 2), seconds=(1.0, 1.0), plain=1.0)

    def __init__(self, model: ToyModel, compiler: Compiler) -> None:
        self._model = model
        self._rows: list[list[int]] = []  # committed tokens by slot
        self._first, self._fed = 0, list[list[int]]()  # of the last pass: its first row, and its nodes' tokens
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
    def load(cls, model: object, compiler: Compiler, options: BackendOptions = NO_OPTIONS) -> "ToyBackend":
        if not isinstance(model, ToyModel):
            raise ModelError(f"the toy backend supports a ToyModel, not an object of type {type(model).__name__}")
        return cls(model, compiler)

    def open(self, capacity: int) -> None:
        self._rows.append([])

    def forward(self, layout: Layout) -> Output:
        self._first, self._fed = layout.first, layout.input_ids.tolist()
        rows = [
            torch.stack([self._logits(context(layout, row, node, committed)) for node in layout.columns])
            for row, committed in enumerate(self._rows[layout.first :][: len(layout.lengths)])
        ]
        return Output(torch.stack(rows), layout.columns, _states(layout), layout.hidden)

    def _logits(self, context: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(list(self._model.probs(context)), dtype=torch.float64).log()

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        for row, (fed, path) in enumerate(zip(self._fed, paths, strict=True), self._first):
            self._rows[row] += [fed[node] for node in path]

    def rollback(self, row: int, length: int) -> None:
        del self._rows[row][length:]

    def release(self, row: int) -> None:
        last = self._rows.pop()
        if row < len(self._rows):
            self._rows[row] = last

    def copy_block(self, row: int, start: int, stop: int) -> KVBlock:
        return KVBlock((torch.tensor(self._rows[row][start:stop]),))

    def append_blocks(self, row: int, held: Sequence[KVBlock]) -> None:
        self._rows[row] += [token for each in held for token in each.parts[0].tolist()]

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def row_bytes(self) -> int:
        return 0


def _states(layout: Layout) -> torch.Tensor:
    """Fake hidden states, ``(rows, width, layers, 3)``: the layer, the node's token and its position."""
    numbers = (each[..., None].expand(-1, -1, len(layout.hidden)) for each in (layout.input_ids, layout.positions))
    layers = torch.tensor(layout.hidden, dtype=torch.int64).expand(*layout.input_ids.shape, -1)
    return torch.stack([layers, *numbers], dim=-1).double()


def context(layout: Layout, row: int, node: int, committed: Sequence[int]) -> tuple[int, ...]:
    """The tokens that a node sees, by position."""
    if not layout.masks:  # a chain
        return (*committed, *layout.input_ids[row, : node + 1].tolist())
    length = layout.lengths[row]
    slots = torch.nonzero(layout.visible("full_attention")[row, node]).flatten().tolist()
    seen = {
        (slot if slot < length else int(layout.positions[row, slot - length])): (
            committed[slot] if slot < length else int(layout.input_ids[row, slot - length])
        )
        for slot in slots
    }
    return tuple(seen[position] for position in sorted(seen))
