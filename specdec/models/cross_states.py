"""Cross-attention's states: each decoder layer's keys and values of an encoder's output, computed once for a prompt.

They depend on the encoder's output alone, never change, and are never rolled back. Those of several rows are stacked
for a pass; the stack serves all passes over the same rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import ref

import torch
from transformers.cache_utils import Cache, DynamicLayer

from specdec.errors import RequestError
from specdec.models.encoder_decoders import EncoderOutput, KeysAndValues


@dataclass(frozen=True, slots=True)
class CrossStates:
    """The keys and values of the rows of a pass.

    Attributes:
        cache: as a decoder reads them.
        num_states: by row.
        mask: additive, ``(rows, 1, 1, states)``; None if the rows have equally many states.
    """

    cache: Cache
    num_states: Sequence[int]
    mask: torch.Tensor | None

    def mask_of(self, width: int) -> torch.Tensor | None:
        """Return the mask of a pass, ``(rows, 1, width, states)``."""
        if self.mask is None:
            return None
        mask = self.mask.expand(-1, -1, width, -1)
        mask.num_states = self.mask.num_states  # type: ignore[attr-defined]
        return mask


class CrossStack:
    """Makes the keys and values of passes.

    Args:
        read: returns each decoder layer's keys and values of a prompt.
        takes_mask: False if the decoder sees all states, masked or not.
    """

    def __init__(self, read: Callable[[EncoderOutput], list[KeysAndValues]], takes_mask: bool) -> None:
        self._read, self._takes_mask = read, takes_mask
        self._rows: list[ref[EncoderOutput]] = []
        self._states: CrossStates | None = None

    def of(self, rows: Sequence[EncoderOutput]) -> CrossStates:
        """Return the keys and values of a pass's rows.

        Raises:
            RequestError: if the rows have different numbers of states, and the decoder takes no mask.
        """
        for row in rows:
            if not row.layers:
                row.layers = self._read(row)
        if len(rows) == 1:
            return _of_layers(rows[0].layers, [_num_states(rows[0])], None)
        if self._states is None or [each() for each in self._rows] != [*rows]:
            self._states = self._stacked(rows)
            self._rows = [ref(row, self._drop) for row in rows]
        return self._states

    def _drop(self, _: object) -> None:
        self._rows, self._states = [], None

    def _stacked(self, rows: Sequence[EncoderOutput]) -> CrossStates:
        """Stack rows, which keep views of the stack: nothing is held twice."""
        lengths = [_num_states(row) for row in rows]
        if len({*lengths}) > 1 and not self._takes_mask:
            raise RequestError(
                "encoder outputs of different lengths can't share a pass of this model: use max_batch_size=1, or "
                "inputs of one size"
            )
        layers = []
        for number in range(len(rows[0].layers)):
            both = [_padded([row.layers[number][part] for row in rows], max(lengths)) for part in range(2)]
            layers.append((both[0], both[1]))
            for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                keys, values = (part[index : index + 1, :, :length] for part in both)
                row.layers[number] = keys, values
        return _of_layers(layers, lengths, _mask_of(lengths, layers[0][0]))


def _num_states(row: EncoderOutput) -> int:
    return row.layers[0][0].shape[2]


def _padded(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    first = rows[0]
    padded = first.new_zeros(len(rows), first.shape[1], length, first.shape[3])
    for index, row in enumerate(rows):
        padded[index, :, : row.shape[2]] = row[0]
    return padded


def _mask_of(lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor | None:
    if len({*lengths}) == 1:
        return None
    is_padding = torch.arange(max(lengths), device=like.device) >= torch.tensor(lengths, device=like.device)[:, None]
    mask = like.new_zeros(is_padding.shape).masked_fill_(is_padding, torch.finfo(like.dtype).min)
    mask = mask[:, None, None]
    mask.num_states = [*lengths]  # type: ignore[attr-defined]  # for attention that sums each row's own
    return mask


def _of_layers(layers: Sequence[KeysAndValues], lengths: Sequence[int], mask: torch.Tensor | None) -> CrossStates:
    held = []
    for keys, values in layers:
        layer = DynamicLayer()
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        held.append(layer)
    return CrossStates(Cache(layers=held), lengths, mask)
