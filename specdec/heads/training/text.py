"""Text for training as one compact array of tokens, with the place where each document's answer begins."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from specdec.errors import ModelError
from specdec.machine.cache_files import replace_file

_NAMES = "tokens", "offsets", "answers"
_DAMAGE = OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, BadZipFile, zlib.error


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Documents in a row. Heads learn from answers, which the target wrote; what comes before is context.

    Attributes:
        tokens: (tokens,) of all documents.
        offsets: (documents + 1,) where each begins in ``tokens``, and where the last ends.
        answers: (documents,) the index within each document at which its answer begins.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    answers: NDArray[np.int32]

    @classmethod
    def of(cls, documents: list[NDArray[np.int32]], answers: list[int]) -> Self:
        """Join documents, each with the index of its answer."""
        lengths = np.array([0, *map(len, documents)], dtype=np.int64)
        tokens = np.concatenate(documents).astype(np.int32) if documents else np.zeros(0, np.int32)
        return cls(tokens, lengths.cumsum(), np.array(answers, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def num_answer_tokens(self) -> int:
        """The number of tokens to learn from."""
        return int(len(self.tokens) - self.answers.sum())

    def document(self, index: int) -> NDArray[np.int32]:
        """Return the tokens of one document."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def select(self, indices: NDArray[np.int64]) -> Self:
        """Return some documents, in the order of ``indices``."""
        return type(self).of([self.document(index) for index in indices], self.answers[indices].tolist())

    def first(self, num_answer_tokens: int) -> Self:
        """Return the first documents that together have ``num_answer_tokens``, or all if there are fewer."""
        sizes = np.diff(self.offsets) - self.answers
        count = int(np.searchsorted(sizes.cumsum(), num_answer_tokens)) + 1
        return self.select(np.arange(min(count, len(self))))

    def deduplicated(self) -> Self:
        """Return the documents with which no other one begins, equal ones once.

        A document that begins with an earlier one takes its place, so the places of the others don't change.
        """
        documents = [self.document(index).tobytes() for index in range(len(self))]
        places, longest = dict[int, int](), -1  # of the documents that stay, by index
        for index in sorted(range(len(self)), key=documents.__getitem__, reverse=True):
            if places and documents[longest].startswith(documents[index]):
                places[longest] = min(places[longest], index)
            else:
                longest = index
                places[index] = index
        return self.select(np.array(sorted(places, key=places.__getitem__), dtype=np.int64))

    def save(self, path: Path) -> None:
        """Write a compressed file, in 16 bits per token where the vocabulary allows."""
        is_small = len(self.tokens) == 0 or self.tokens.max() < 2**16
        tokens = self.tokens.astype(np.uint16) if is_small else self.tokens
        replace_file(
            path,
            lambda file: np.savez_compressed(file, tokens=tokens, offsets=self.offsets, answers=self.answers),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that ``save`` wrote.

        Raises:
            ModelError: the file isn't one, or is damaged.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                tokens, offsets, answers = (arrays[name] for name in _NAMES)
        except _DAMAGE as error:
            raise ModelError(f"{path} is no file of training text ({error}): generate the text again") from error
        return cls(tokens.astype(np.int32), offsets, answers)
