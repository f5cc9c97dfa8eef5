"""The layout of one forward pass, which mask compilers make and backends run."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch._C import _disabled_torch_function_impl

from specdec.tree import DraftTree

MAX_POSITIONS = 1 << 24  # of a model without a limit, so that every request ends


@dataclass(frozen=True, slots=True)
class Padding:
    """The numbers of tokens to which a backend pads its passes, all rows together.

    Attributes:
        sizes: ascending; larger passes aren't padded. Empty: none are.
        least_width: number of tokens to which each row is padded first.
    """

    sizes: tuple[int, ...] = ()
    least_width: int = 1

    def size(self, num_tokens: float) -> float:
        """Return the size of a pass over ``num_tokens`` tokens."""
        index = bisect_left(self.sizes, num_tokens)
        return self.sizes[index] if index < len(self.sizes) else num_tokens

    def size_of_rows(self, num_rows: int, width: float) -> float:
        """Return the size of a pass over ``num_rows`` rows of ``width`` tokens, in the mean."""
        return self.size(round(num_rows * max(width, self.least_width)))


NO_PADDING = Padding()


@dataclass(frozen=True, slots=True)
class Window:
    """The positions that a layer sees: ``sliding``: query - key < size; ``chunked``: the query's block of ``size``."""

    kind: Literal["sliding", "chunked"]
    size: int

    def contains(self, query: Any, key: Any) -> Any:
        """Return whether a query's window contains an earlier key, by their positions: numbers or arrays."""
        return query - key < self.size if self.kind == "sliding" else query // self.size == key // self.size


@dataclass(frozen=True, slots=True)
class Shapes:
    """The facts of a backend that compilers and the decoding loop depend on.

    Attributes:
        max_positions: the model's own limit; None if it has none.
        takes_trees: False if drafts are cut to their longest chain.
        takes_drafts: False if a pass over several tokens is right at the beginning of a text only: no draft is asked
            for then.
        attention: the kinds of attention layers, each with its window or None.
        row_multiple: widths are padded to a multiple of this number, because some kernels round a row differently in
            products of few rows.
        widths: ascending; layouts are first padded to one of these, for backends with fixed shapes.
        chunk: tokens of a prompt that one pass reads. Chunks begin at multiples of this number, so that a prompt is
            always computed in the same way.
        num_layers: layers with hidden states, without the embeddings; None if unknown.
        padding: by which the backend itself pads passes further, all rows together.
        has_causal_mask: False if the model's own mask isn't causal, so that every pass needs one.
        packs_rows: True if a pass computes each row's own nodes alone, so that a chunk of a prompt and decoding
            requests share a pass; False if rows are padded to the widest.
    """

    vocab_size: int
    max_positions: int | None
    takes_trees: bool
    attention: Mapping[str, Window | None]
    dtype: torch.dtype
    device: torch.device
    row_multiple: int = 1
    widths: tuple[int, ...] = ()
    chunk: int = 256
    num_layers: int | None = None
    padding: Padding = NO_PADDING
    packs_rows: bool = False
    has_causal_mask: bool = True
    takes_drafts: bool = True

    @property
    def context_length(self) -> int:
        """The most tokens of a text and its prompt; ``MAX_POSITIONS`` for a model that has no limit."""
        return MAX_POSITIONS if self.max_positions is None else self.max_positions

    def padded(self, width: int) -> int:
        """Return the padded width of a pass whose widest row has ``width`` nodes."""
        fixed = next((fixed for fixed in self.widths if fixed >= width), width)
        return fixed + -fixed % self.row_multiple


class PartialMask(torch.Tensor):
    """A mask whose columns aren't cache slots; subclasses define ``visible``.

    The tensor has four dimensions, because transformers passes such masks to its layers unchanged.
    """

    # Operations return ordinary tensors.
    __torch_function__ = _disabled_torch_function_impl  # type: ignore[assignment]  # as in torch's own Parameter

    def visible(self) -> torch.Tensor:
        """The slots that each node sees, boolean, ``(rows, width, slots)``."""
        raise NotImplementedError


class FixedMask(PartialMask):
    """A ``PartialMask`` whose shape doesn't grow with the text, so that a pass with it can be captured as a CUDA graph.

    The attention gets the keys and values of all rows in the cache, up to a fixed number of slots, and finds those of a
    node by the number of its row in the mask. Compilers make such a mask on the host; backends copy it to the device,
    together with a pass's other numbers.
    """

    def numbered_from(self, first: int) -> torch.Tensor:
        """Return the mask for rows that begin at row ``first`` of the keys, as an ordinary tensor."""
        raise NotImplementedError


class KeyedDraw(NamedTuple):
    """A draw from softmax(logits / temperature), by the noise of the seed and the position."""

    seed: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one forward pass over consecutive rows.

    Attributes:
        lengths: of the rows' committed tokens.
        num_nodes: of each row, without padding.
        input_ids, positions: ``(rows, width)``, on the host.
        masks: by kind of attention, ``(rows, 1, width, slots)``, boolean or additive (0 for visible), or a
            ``PartialMask``; empty if every row is a chain, for which the model's own causal mask serves.
        columns: the nodes whose logits are wanted in any row, ascending.
        attention: the name of the attention that reads the masks; None for the model's own.
        first: the number of the first row.
        hidden: the layers whose hidden states are wanted, numbered as by transformers: 0 for the embeddings, -1 for the
            last layer after its norm.
        num_top: the ``k`` of the top-k logits that will be read at all columns, so that they need no copy of their own.
        draws: by row, how a backend may draw the tokens of the columns, so that the host needs no logits; None for rows
            whose tokens it can't draw, and empty if it can draw none.
        trees: a tree per row.
        num_prefix: by row, how many of its first nodes are committed tokens before the root: all, in a prompt's chunk.
            Empty if there are none.
    """

    lengths: tuple[int, ...]
    num_nodes: tuple[int, ...]
    input_ids: torch.Tensor
    positions: torch.Tensor
    masks: Mapping[str, torch.Tensor]
    columns: tuple[int, ...]
    attention: str | None = None
    first: int = 0
    hidden: tuple[int, ...] = ()
    num_top: int = 0
    draws: tuple[KeyedDraw | None, ...] = ()
    trees: tuple[DraftTree, ...] = ()
    num_prefix: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Nodes per row, padding included."""
        return self.input_ids.shape[1]

    def visible(self, kind: str) -> torch.Tensor:
        """The slots that each node sees in a kind of layer that has a mask, boolean, ``(rows, width, slots)``."""
        mask = self.masks[kind]
        if isinstance(mask, PartialMask):
            return mask.visible()
        return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0


class Compiler(ABC):
    """A mask compiler as backends and the loop use it; ``specdec/masks/base.py`` has the contract.

    Attributes:
        attention: the name of the attention that reads the masks, which ``register`` registers with transformers; None
            for the model's own.
        bit_exact: True if logits have the same bits in every layout.
        has_fixed_shapes: True if the masks are ``FixedMask``, so that the static backend can capture passes.
        max_depth: the largest depth of a tree; None for no limit.
    """

    attention: ClassVar[str | None] = None
    bit_exact: ClassVar[bool] = False
    has_fixed_shapes: ClassVar[bool] = False
    max_depth: ClassVar[int | None] = None

    def register(self) -> None:  # noqa: B027 - optional
        """Register ``attention`` with transformers; called by backends that run transformers' layers."""

    def refuses(self, device: torch.device, dtype: torch.dtype) -> str:
        """Return why the attention doesn't support a device or a dtype, or ""; numerics then choose another."""
        return ""

    def hint(self, why: str) -> str:
        """Return what else may give exact numerics where ``why`` says that they are unavailable, or ""."""
        return ""

    def operations(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which the model's layers run; by default torch's own operations are used."""
        return nullcontext()

    @abstractmethod
    def compile(self, trees: Sequence[DraftTree], lengths: Sequence[int], shapes: Shapes) -> Layout:
        """Compile one forward pass over a tree per row."""
