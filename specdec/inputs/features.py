"""The features of a prompt's images and videos, as a model's encoder returns them, by placeholder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

# Of an encoder's output; a model reads its states no more.
_KNOWN = {"pooler_output", "deepstack_features", "last_hidden_state", "hidden_states", "attentions"}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Features of consecutive placeholders, ``(placeholders, size)``, and whether the model reads a list of tensors."""

    rows: torch.Tensor
    is_list: bool

    @classmethod
    def of(cls, given: Any) -> Self:
        rows = torch.cat([each.reshape(-1, each.shape[-1]) for each in given])
        return cls(rows, not isinstance(given, torch.Tensor))

    def as_given(self) -> Any:
        return [self.rows] if self.is_list else self.rows[None]


@dataclass(frozen=True, slots=True)
class Features:
    """The vectors that a model reads in place of one modality's placeholders.

    Attributes:
        kind: the class of the encoder's output.
        pooled: the features themselves.
        deepstack: those that are added to the states of the first layers, by layer; None if there are none.
        others: what else the model reads of the output, by name, the same for each part.
    """

    kind: type[Any]
    pooled: _Rows
    deepstack: tuple[_Rows, ...] | None
    others: Mapping[str, Any]

    @classmethod
    def of(cls, output: Any) -> Self:
        """Return the features of an encoder's output, of all images in their order."""
        layers = output.get("deepstack_features")
        deepstack = None if layers is None else tuple(map(_Rows.of, layers))
        others = {name: value for name, value in output.items() if name not in _KNOWN}
        return cls(type(output), _Rows.of(output["pooler_output"]), deepstack, others)

    def __len__(self) -> int:
        return len(self.pooled.rows)

    def part(self, start: int, stop: int) -> "Features":
        """Return the features of the placeholders from ``start`` to ``stop``."""

        def cut(all_rows: _Rows) -> _Rows:
            return _Rows(all_rows.rows[start:stop], all_rows.is_list)

        return Features(self.kind, cut(self.pooled), self.deepstack and tuple(map(cut, self.deepstack)), self.others)

    def output(self) -> Any:
        """Return the features as the model reads them."""
        layers = {} if self.deepstack is None else {"deepstack_features": [each.as_given() for each in self.deepstack]}
        return self.kind(pooler_output=self.pooled.as_given(), **layers, **self.others)

    def tensors(self) -> Sequence[torch.Tensor]:
        """Return all tensors, for digests."""
        return [self.pooled.rows, *(each.rows for each in self.deepstack or ())]


def joined(parts: Sequence[Features]) -> Features:
    """Return the features of several rows of a pass, one after another."""
    if len(parts) == 1:
        return parts[0]

    def join(rows: Sequence[_Rows]) -> _Rows:
        return _Rows(torch.cat([each.rows for each in rows]), rows[0].is_list)

    layers = zip(*(part.deepstack or () for part in parts), strict=True)
    deepstack = None if parts[0].deepstack is None else tuple(map(join, layers))
    return Features(parts[0].kind, join([part.pooled for part in parts]), deepstack, parts[0].others)
