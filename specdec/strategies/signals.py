"""Signals: what a strategy asks of the target's passes, and the answers.

A strategy declares pairs of nodes and a quantity in ``wants``. The answers come after each pass: those about
``Nodes.PROMPT`` to ``Drafter.read``, by position, all others as ``Feedback.signals``, by node of the verified tree.

Laws:
- An answer is what the target says after the node's own path, whether or not the node was accepted.
- Nodes without a possible token have none, and neither have nodes that weren't forwarded, such as other branches if the
  model supports chains only.
- Answers are computed, and copied from the device, when they are first read. Until then they keep the pass's output in
  memory.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from specdec.models.state_rows import rows_at


class Nodes(Enum):
    """The nodes whose signals a proposer wants."""

    LAST = "last"  # the last accepted node, whose draw is the bonus token
    PATH = "path"  # the accepted path, root included
    CANDIDATE = "candidate"
    PROBE = "probe"
    ALL = "all"
    PROMPT = "prompt"  # the prompt's tokens except its last, which is the first root; passed to ``Drafter.read``


class What(Enum):
    """A signal without a size."""

    ARGMAX = "argmax"  # the greedy prediction from the raw logits
    DRAW = "draw"  # the token that the target would emit, with processors, temperature and keyed noise


@dataclass(frozen=True, slots=True)
class TopK:
    """The top-k next tokens by raw logits, most probable first, as two tuples: the tokens and their probabilities."""

    k: int


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The top-k raw logits, largest first, as two tuples: the tokens and their logits; cheaper than ``TopK``."""

    k: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden states of some layers, ``(layers, size)``, on the model's device.

    Layers are numbered as by transformers: 0 for the embeddings, -1 for the last layer after its norm.
    """

    layers: tuple[int, ...] = (-1,)


Signal = tuple[Nodes, What | TopK | TopLogits | Hidden]


class Answers(Mapping[int, Any]):
    """The values of one signal by node; computed, and copied from the device, when they are first read."""

    def __init__(self, find: Callable[[], Mapping[int, Any]]) -> None:
        self._find = find
        self._found: Mapping[int, Any] | None = None

    def _answers(self) -> Mapping[int, Any]:
        if self._found is None:
            self._found = self._find()
        return self._found

    def __getitem__(self, node: int) -> Any:
        return self._answers()[node]

    def __iter__(self) -> Iterator[int]:
        return iter(self._answers())

    def __len__(self) -> int:
        return len(self._answers())

    def items(self) -> ItemsView[int, Any]:
        return self._answers().items()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'not read yet' if self._found is None else dict(self._found)})"

    def tensor(self) -> torch.Tensor:
        """Return the values of a ``Hidden`` signal, ``(nodes, layers, size)``, in the order of iteration.

        Raises:
            TypeError: for any other signal.
        """
        raise TypeError("only a Hidden signal's values are a tensor: read other values by node")

    def at(self, place: Mapping[int, int]) -> "Answers":
        """Return the same values by the nodes of another tree; ``place`` maps these to the nodes here."""
        return Answers(lambda: {node: self[there] for node, there in place.items() if there in self})


class HiddenAnswers(Answers):
    """The values of a ``Hidden`` signal, computed together.

    Args:
        nodes: in the order of the tensor's first dimension.
        find: returns the hidden states, ``(nodes, layers, size)``.
    """

    def __init__(self, nodes: Sequence[int], find: Callable[[], torch.Tensor]) -> None:
        super().__init__(dict)
        self._nodes, self._find_states = nodes, find
        self._states: torch.Tensor | None = None

    def _answers(self) -> Mapping[int, Any]:
        if self._found is None:
            self._found = dict(zip(self._nodes, self.tensor(), strict=True))
        return self._found

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def tensor(self) -> torch.Tensor:
        if self._states is None:
            self._states = self._find_states()
        return self._states

    def at(self, place: Mapping[int, int]) -> "Answers":
        row_of = {node: row for row, node in enumerate(self._nodes)}
        found = {node: row_of[there] for node, there in place.items() if there in row_of}
        return HiddenAnswers(list(found), lambda: rows_at(self.tensor(), list(found.values())))
