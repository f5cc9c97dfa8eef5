"""The output of one forward pass: logits and hidden states, copied to the host when they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec.layout import KeyedDraw
from specdec.models.state_rows import rows_at
from specdec.sampling.topk import Top, host_top_lists, top_ids, top_lists, topk

States = Sequence[torch.Tensor] | torch.Tensor  # a row's at [row], (nodes, layers, size)


class Output:
    """The logits and hidden states of one forward pass, for all of its rows.

    Attributes:
        logits: ``(rows, columns, vocab)``, on the model's device; the columns are the layout's.
        hidden: for each row ``(nodes, layers, size)``, on the model's device; later passes don't overwrite them.
        layers: those of ``hidden``, in order.
        num_reread: by row, the committed tokens that the pass read again; empty if there are none.
        num_passes: passes of the model; several if rows of models with states don't share one.
        num_top: if set, ``top_ids`` also keeps this many top-k logits for a later ``top_logits(num_top)``: found in the
            same search on a CPU, and copied together with the ids from a device.

    Args:
        choices: if the pass has computed them.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        columns: Sequence[int],
        hidden: States = (),
        layers: Sequence[int] = (),
        num_reread: Sequence[int] = (),
        num_passes: int = 1,
        choices: "Choices | None" = None,
    ) -> None:
        self.logits = logits
        self.hidden, self.layers = hidden, tuple(layers)
        self.column_of = {node: column for column, node in enumerate(columns)}
        self.num_reread, self.num_passes = num_reread, num_passes
        self.num_top, self._choices = 0, choices
        self._drawn: list[list[int]] = []
        self._ids: list[list[int]] | None = None
        self._top: dict[int, tuple[list[Any], list[Any]]] = {}
        self._top_logits: dict[int, tuple[list[Any], list[Any]]] = {}
        self._fetched: dict[tuple[int, int], torch.Tensor] = {}

    def top_id(self, row: int, node: int) -> int:
        """The id of a node's largest logit, the lowest of equals; ``~id``, which is negative, if it isn't finite."""
        return self.top_ids(row)[self.column_of[node]]

    def top_ids(self, row: int) -> list[int]:
        """The same by column, for all nodes of a row."""
        if self._ids is None:
            self._ids = self._top_ids()
        return self._ids[row]

    def _top_ids(self) -> list[list[int]]:
        """``top_ids`` of all rows, in the only copy to the host of a greedy step."""
        if self.logits.is_cpu:
            if self.num_top and (top := host_top_lists(self.logits, self.num_top)):
                self._top_logits[self.num_top] = top
                return [[best[0] for best in row] for row in top[0]]
            return top_ids(self.logits)
        choices = self._choices or Choices(choices_of(self.logits, self.num_top))
        copied = choices.numbers.cpu()
        if choices.draws:
            self._drawn, copied = copied[..., -1].long().tolist(), copied[..., :-1]
        if num_top := copied.shape[-1] // 2:
            tokens, values = copied[..., 1:].chunk(2, -1)
            self._top_logits[num_top] = tokens.long().tolist(), values.tolist()
        found: list[list[int]] = copied[..., 0].long().tolist()
        return found

    def drawn(self, row: int, node: int) -> int | None:
        """The token that the pass has drawn at a node; None if it has drawn none."""
        if self._choices is None or not self._choices.draws or self._choices.draws[row] is None:
            return None
        self.top_ids(row)  # copied together with them
        return self._drawn[row][self.column_of[node]]

    def top(self, k: int) -> tuple[list[Any], list[Any]]:
        """The top-k ids and their probabilities, ``(rows, columns, k)`` each; copied to the host once a pass."""
        if k not in self._top:
            probs = self.logits.softmax(-1, dtype=torch.promote_types(self.logits.dtype, torch.float32))
            self._top[k] = top_lists(probs, k)
        return self._top[k]

    def top_logits(self, k: int) -> tuple[list[Any], list[Any]]:
        """The top-k ids and their logits, ``(rows, columns, k)`` each; copied to the host once a pass."""
        if k not in self._top_logits:
            self._top_logits[k] = top_lists(self.logits, k)
        return self._top_logits[k]

    def fetch(self, places: Sequence[tuple[int, int]]) -> None:
        """Copy the logits of some (row, node) pairs to the host in one transfer; later reads use the copies."""
        if self.logits.is_cpu or not places:
            return
        rows, nodes = zip(*places, strict=True)
        copied = self.logits[list(rows), [self.column_of[node] for node in nodes]].cpu()
        self._fetched.update(zip(places, copied, strict=True))

    def at(self, row: int, node: int) -> torch.Tensor:
        """The logits at a node, ``(vocab,)``: on the host if fetched, else on the model's device."""
        fetched = self._fetched.get((row, node))
        return self.logits[row, self.column_of[node]] if fetched is None else fetched


@dataclass(frozen=True, slots=True)
class Choices:
    """The ids and logits that a pass has chosen of all its logits.

    Attributes:
        numbers: the result of ``choices_of``, on the model's device.
        draws: those of the layout, if tokens were drawn.
    """

    numbers: torch.Tensor
    draws: Sequence[KeyedDraw | None] = ()


def choices_of(logits: torch.Tensor, num_top: int, drawn: torch.Tensor | None = None) -> torch.Tensor:
    """Return what a step reads of logits in one tensor, ``(rows, columns, numbers)``, float32 or better.

    The id of the largest, or ``~id`` if that isn't finite; the top ids, and their logits; and the drawn token.
    """
    largest, ids = topk(logits, 1)
    ids = torch.where(largest.isfinite(), ids, ~ids)
    values, tokens = topk(logits, num_top) if num_top else (largest[..., :0], ids[..., :0])
    parts = (ids, tokens, values) if drawn is None else (ids, tokens, values, drawn[..., None])
    dtype = torch.promote_types(logits.dtype, torch.float32)  # in which any token id is exact
    return torch.cat([part.to(dtype) for part in parts], -1)


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row of an output, addressed by the nodes of the row's tree.

    Attributes:
        num_prefix: the number of tokens forwarded before the tree's root.
    """

    output: Output
    row: int
    num_prefix: int = 0

    def argmax(self, node: int) -> int:
        """The id of the largest logit at a node, the lowest of equals."""
        found = self.output.top_id(self.row, node + self.num_prefix)
        return found if found >= 0 else ~found

    def is_finite(self, node: int) -> bool:
        """Return True if the node's largest logit is finite."""
        return self.output.top_id(self.row, node + self.num_prefix) >= 0

    def drawn(self, node: int) -> int | None:
        """The token that the pass has drawn at a node; None if it has drawn none."""
        return self.output.drawn(self.row, node + self.num_prefix)

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, ``(vocab,)``."""
        return self.output.at(self.row, node + self.num_prefix)

    def top_probs(self, nodes: Sequence[int], k: int) -> dict[int, Top]:
        """The top-k tokens by raw logits and their probabilities, at those of some nodes whose logits are finite."""
        return self._top(nodes, *self.output.top(k))

    def top_logits(self, nodes: Sequence[int], k: int) -> dict[int, Top]:
        """The top-k tokens by raw logits and these logits, at those of some nodes whose logits are finite."""
        return self._top(nodes, *self.output.top_logits(k))

    def _top(self, nodes: Sequence[int], ids: Sequence[Any], values: Sequence[Any]) -> dict[int, Top]:
        """Return ids and values, ``(rows, columns, k)``, at the nodes with finite logits."""
        own_ids, own_values, column_of = ids[self.row], values[self.row], self.output.column_of
        best, found = self.output.top_ids(self.row), dict[int, Top]()
        for node in nodes:
            column = column_of[node + self.num_prefix]
            if best[column] >= 0:  # else it isn't finite
                found[node] = tuple(own_ids[column]), tuple(own_values[column])
        return found

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """The hidden states of some layers at some nodes, ``(nodes, layers, size)``, on the model's device.

        A view of the output's if these are all of its layers and consecutive nodes, as those of prompts and chains are.
        """
        states = self.output.hidden[self.row]
        if tuple(layers) != self.output.layers:
            states = states[:, [self.output.layers.index(layer) for layer in layers]]
        return rows_at(states, [node + self.num_prefix for node in nodes])

    def of_prefix(self) -> "OutputRow":
        """Return the same row, addressed by the tokens that were forwarded before the tree's root."""
        return replace(self, num_prefix=0)
