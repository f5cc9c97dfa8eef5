"""A block of the prefix cache: the keys and values of a few tokens after a given text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional
from weakref import WeakKeyDictionary

from specdec.backends.base import KVBlock
from specdec.decoding.strategy import Strategy
from specdec.inputs.base import Mark, PromptInputs
from specdec.strategies.request import Retained

BLOCK = 32  # tokens: a request recomputes less than a block of what it shares


@dataclass(slots=True, eq=False)
class Block:
    """Keys and values of ``tokens``, which follow the text of ``parent`` and end at position ``end``.

    Attributes:
        tokens: with the images and the like that begin among them.
        num_bytes: of keys, values and states.
        states: by strategy, about the block's positions and the one before them, without the last: the state at a
            position may depend on the next token.
    """

    parent: Optional["Block"]
    tokens: tuple[int | Mark, ...]
    end: int
    held: KVBlock
    num_bytes: int = 0
    states: WeakKeyDictionary[Strategy, Retained] = field(default_factory=WeakKeyDictionary)


def content_of(text: Sequence[int], inputs: PromptInputs | None, start: int, end: int) -> tuple[int | Mark, ...]:
    """Return the tokens of a block, and the inputs that begin among them."""
    return (*text[start:end], *(() if inputs is None else inputs.marks_in(start, end)))
