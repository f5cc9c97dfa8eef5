"""The ways in which decoders take the positions of a pass's tokens: nodes of a tree, or rows of different lengths.

Decoders of text models take ``position_ids``. In encoder-decoder models, many count slots of the cache themselves.
Their positions are set where they are looked up, by hooks that are registered for a pass:

- in a table of vectors, ``embed_positions`` (BART, Marian, NLLB, …);
- in a table of biases by the distance of query and key (T5). Its result is the same for all rows, so the mask of a pass
  is corrected instead, by the difference between the bias of the positions and that of the slots.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch

_HIDDEN = 0.5  # of the lowest number: a mask's numbers below hide a slot


class DecoderPositions:
    """The way in which a decoder takes positions; by slots of the cache if there is none.

    Attributes:
        pad: the id that has no position of its own in this decoder's table, so that a prompt can't contain it; or None.
    """

    def __init__(self, decoder: torch.nn.Module) -> None:
        self._is_argument = "position_ids" in signature(decoder.forward).parameters
        tables = [] if self._is_argument else _tables(decoder)
        self._table: Any = tables[0] if len(tables) == 1 else None
        biases = [module for module in decoder.modules() if hasattr(module, "relative_attention_bias")]
        self._bias: Any = biases[0] if len(biases) == 1 else None
        self.pad: int | None = None if self._is_embedding() else getattr(self._table, "padding_idx", None)

    def _is_embedding(self) -> bool:
        return isinstance(self._table, torch.nn.Embedding)

    def arguments(self, positions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the arguments of the decoder's forward for some positions, ``(rows, width)``."""
        return {"position_ids": positions} if self._is_argument else {}

    @contextmanager
    def looked_up(self, ids: torch.Tensor, positions: torch.Tensor) -> Iterator[None]:
        """Temporarily have the decoder's table return the vectors of some positions."""
        if self._table is None:
            yield
            return

        def found(table: Any, _: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            if self._is_embedding():
                rows: torch.Tensor = torch.nn.functional.embedding(
                    positions + getattr(table, "offset", 0), table.weight
                )
                return rows
            counted = positions + table.padding_idx + 1
            vectors: torch.Tensor = table.weights[torch.where(ids == table.padding_idx, table.padding_idx, counted)]
            return vectors.to(output.dtype)

        # The table's own result isn't used. A tree's last slots may lie outside of the table, so only one is counted.
        counting = self._table.register_forward_pre_hook(_count_one_token, with_kwargs=True)
        finding = self._table.register_forward_hook(found)
        try:
            yield
        finally:
            counting.remove()
            finding.remove()

    def corrected(self, mask: Any, positions: torch.Tensor) -> Any:
        """Return a pass's mask with what the bias of a position differs from that of its slot.

        ``mask``: additive, ``(rows, 1, width, slots)``; masks without such a bias are returned as they are.
        """
        if self._bias is None or not isinstance(mask, torch.Tensor) or not mask.is_floating_point():
            return mask
        width, num_slots = mask.shape[2:]
        slots = torch.arange(num_slots, device=mask.device)
        node = slots - positions[:, :1]  # of a row, its first token is in the slot of its position
        is_node = (node >= 0) & (node < width)
        keys = torch.where(is_node, positions.gather(1, node.clamp(0, width - 1)), slots)
        right = self._biases(keys[:, None] - positions[..., None])
        taken = self._biases(slots - slots[num_slots - width :, None])
        is_hidden = mask < _HIDDEN * torch.finfo(mask.dtype).min
        return torch.where(is_hidden, mask, (right - taken).to(mask.dtype))

    def _biases(self, distances: torch.Tensor) -> torch.Tensor:
        """Return the biases of distances, ``(…, queries, keys)``: ``(…, heads, queries, keys)``."""
        table = self._bias
        buckets = table._relative_position_bucket(
            distances,
            bidirectional=False,
            num_buckets=table.relative_attention_num_buckets,
            max_distance=table.relative_attention_max_distance,
        )
        biases: torch.Tensor = table.relative_attention_bias(buckets)
        return biases.movedim(-1, -3)


def _tables(decoder: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the tables of vectors by position; Pegasus-X computes its vectors."""
    named = [module for path, module in decoder.named_modules() if path.rpartition(".")[2] == "embed_positions"]
    return [module for module in named if isinstance(module, torch.nn.Embedding) or hasattr(module, "weights")]


def _count_one_token(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Cut a table's arguments to one token, in the first place: ids or their shape, ``(rows, width)``."""
    ids, positions = given[0], named.get("position_ids")
    first = ids[:, :1] if isinstance(ids, torch.Tensor) else torch.Size([ids[0], 1])
    return (first,), {} if positions is None else {"position_ids": positions[..., :1] * 0}
