"""The contract of what a prompt holds besides its tokens: images, audio, or an encoder's states.

Such inputs belong to a request, and move with its row. The loop, strategies and verifiers don't know what they are:
they ask where a pass may end, which tokens can't be drafted, and what cached keys and values depend on. A backend that
``takes_inputs`` gives its model the ``arguments`` of each pass.

Laws:
- A prompt read in any chunks that end where ``chunk_end`` says has the logits of the model's own first pass.
- Prompts have the same keys and values as far as their tokens and ``marks`` are the same.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Optional

import torch

_DIGEST = 16  # bytes


class Mark(NamedTuple):
    """Keys and values from ``position`` on depend on the input with this digest."""

    position: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PassPart:
    """The tokens that a pass reads for one row, from position ``start`` on.

    Attributes:
        inputs: the row's; None for text alone.
        row: index of the row in the pass.
    """

    inputs: Optional["PromptInputs"]
    row: int
    start: int
    tokens: Sequence[int]


class PromptInputs(ABC):
    """The parts of a request's prompt besides its tokens.

    Attributes:
        num_tokens: of the prompt.
        marks: by position, ascending: the inputs that keys and values depend on.
        placeholders: ids that stand for an input, which no draft may contain.
        blocks: stretches of the prompt whose tokens all see one another.
        block_kinds: the kinds of attention layer in which they do; None for all.
        uncut: stretches that one pass must read from the first to the last token: all blocks, and others.
        num_bytes: that the row takes besides the keys and values of its own tokens.
        offset: what the positions of tokens after the prompt are ahead of their index; negative after an image.
    """

    num_tokens: int
    marks: tuple[Mark, ...] = ()
    placeholders: frozenset[int] = frozenset()
    blocks: tuple[range, ...] = ()
    block_kinds: frozenset[str] | None = None
    uncut: tuple[range, ...] = ()
    offset: int = 0
    num_bytes: int = 0

    @classmethod
    @abstractmethod
    def arguments(cls, parts: Sequence[PassPart], positions: torch.Tensor) -> Mapping[str, Any]:
        """Return the arguments of the model's forward for a pass, besides ids, masks and cache; {} for text alone.

        Args:
            parts: at least one has inputs, all of this class.
            positions: (rows, width), with each row's ``offset``; "position_ids" among the arguments replaces them.
        """

    def for_draft_model(self, model: Any) -> Optional["PromptInputs"]:
        """Return what a draft model reads besides tokens; None for text alone, the default."""
        return None

    def is_read_at(self, position: int) -> bool:
        """Return True if passes from a position on have ``arguments``."""
        return position < self.num_tokens

    def chunk_end(self, end: int) -> int:
        """Return where a pass ends that would end before token ``end``: not within an uncut stretch."""
        return max((stretch.stop for stretch in self.uncut if stretch.start < end < stretch.stop), default=end)

    def resume_at(self, num_read: int) -> int:
        """Return after how many of the first ``num_read`` tokens reading may begin again."""
        within = (each.start for each in self.uncut if each not in self.blocks and each.start < num_read < each.stop)
        return min(within, default=num_read)

    def marks_in(self, start: int, stop: int) -> tuple[Mark, ...]:
        """Return the marks from ``start`` to ``stop``."""
        return tuple(mark for mark in self.marks if start <= mark.position < stop)

    def blocks_from(self, start: int) -> tuple[range, ...]:
        """Return the blocks that end after token ``start``, counted from there."""
        return tuple(range(max(0, each.start - start), each.stop - start) for each in self.blocks if each.stop > start)


def bytes_of_rows(rows: Sequence[PromptInputs | None]) -> int:
    """Return the bytes that the inputs of rows take, stacked for a pass: each as much as the largest."""
    return len(rows) * max((0 if inputs is None else inputs.num_bytes for inputs in rows), default=0)


def num_same(one: PromptInputs | None, other: PromptInputs | None) -> float:
    """Return the number of first tokens whose keys and values don't depend on different inputs; infinity for all."""
    first, second = ({*(() if inputs is None else inputs.marks)} for inputs in (one, other))
    return min((mark.position for mark in first ^ second), default=math.inf)


def digest_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a digest of tensors' numbers."""
    digest = blake2b(digest_size=_DIGEST)
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
