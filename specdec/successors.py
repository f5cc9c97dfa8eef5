"""The tokens that a target thinks likely behind each one alone: a first guess where a text says nothing yet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

_MOST = 6e4  # what half precision holds


@dataclass(slots=True, eq=False)
class Successors:
    """The likeliest successors of the first ``num_known`` tokens of a vocabulary.

    Attributes:
        tokens: of each token, ``(vocab, k)``, likeliest first.
        logits: theirs, ``(vocab, k)``, in half precision.
    """

    tokens: np.ndarray
    logits: np.ndarray
    num_known: int = 0

    @classmethod
    def unknown(cls, vocab_size: int = 0, k: int = 0) -> Self:
        """A table of which nothing is known yet."""
        return cls(np.zeros((vocab_size, k), np.int32), np.zeros((vocab_size, k), np.float16))

    @property
    def is_whole(self) -> bool:
        """True if the successors of all tokens are known."""
        return self.num_known == len(self.tokens)

    def of(self, token: int, k: int) -> tuple[tuple[int, float], ...] | None:
        """The ``k`` likeliest successors with their logits, None where they aren't known."""
        if token >= self.num_known:
            return None
        return tuple(zip(self.tokens[token, :k].tolist(), self.logits[token, :k].tolist(), strict=True))

    def add(self, tokens: np.ndarray, logits: np.ndarray) -> None:
        """Add what follows the next few tokens, ``(tokens, k)`` each."""
        end = self.num_known + len(tokens)
        self.tokens[self.num_known : end] = tokens
        self.logits[self.num_known : end] = np.nan_to_num(logits, nan=-_MOST).clip(-_MOST, _MOST)
        self.num_known = end

    def save(self, path: Path) -> None:
        """Write the table to a file, which is there whole or not at all.

        Raises:
            OSError: where there is no room, or no right.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        with written.open("wb") as file:
            np.savez(file, tokens=self.tokens[: self.num_known], logits=self.logits[: self.num_known])
        written.replace(path)

    @classmethod
    def load(cls, path: Path, vocab_size: int, k: int) -> Self:
        """The table of a file; one of which nothing is known where the file isn't there, is damaged or doesn't fit."""
        table = cls.unknown(vocab_size, k)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                table.add(held["tokens"], held["logits"])
        except Exception:  # whatever a damaged archive raises: the table is worked out again
            return cls.unknown(vocab_size, k)
        return table
