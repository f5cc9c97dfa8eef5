"""The tokens that a target thinks likely behind each one alone: a first guess where a text says nothing yet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from specdec.machine.cache_files import replace_file

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
        """Write the known part of the table to a file, which is there whole or not at all.

        Raises:
            OSError: if it can't be written.
        """
        known = slice(self.num_known)
        arrays = {"made_for": self._made_for(path), "tokens": self.tokens[known], "logits": self.logits[known]}
        replace_file(path, lambda file: np.savez(file, allow_pickle=False, **arrays))

    @classmethod
    def load(cls, path: Path, vocab_size: int, k: int) -> Self:
        """Return the table in a file; an unknown one if the file is missing, damaged, or not what ``save`` wrote there.

        The whole file is checked: its name, dtypes and shapes, ids within the vocabulary, and finite logits, the most
        likely first.
        """
        table = cls.unknown(vocab_size, k)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                made_for, tokens, logits = held["made_for"], held["tokens"], held["logits"]
        except Exception:  # whatever a damaged archive raises: the table is worked out again
            return table
        own = table._made_for(path)
        if (
            (made_for.dtype, made_for.shape) == (own.dtype, own.shape)
            and made_for == own
            and table._fits(tokens, logits)
        ):
            table.add(tokens, logits)
        return table

    def _made_for(self, path: Path) -> np.ndarray:
        """Return the mark of a file of such tables in this place: one that was copied or renamed isn't read."""
        return np.array(f"specdec successors 2 {path.stem} {self.tokens.shape}")

    def _fits(self, tokens: np.ndarray, logits: np.ndarray) -> bool:
        """Return True for arrays that could be the first rows of this table."""
        return bool(
            tokens.ndim == 2
            and (tokens.dtype, logits.dtype) == (self.tokens.dtype, self.logits.dtype)
            and tokens.shape == logits.shape == (len(tokens), self.tokens.shape[1])
            and len(tokens) <= len(self.tokens)
            and ((tokens >= 0) & (tokens < len(self.tokens))).all()
            and np.isfinite(logits).all()
            and (logits[:, 1:] <= logits[:, :-1]).all()
        )
