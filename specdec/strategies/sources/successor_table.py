"""A table of the most likely successors of each token of a vocabulary, and its file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from specdec.machine.cache_files import replace_file

_LARGEST = 6e4  # that half precision holds


@dataclass(slots=True, eq=False)
class SuccessorTable:
    """The most likely successors of the first ``num_known`` tokens of a vocabulary.

    Attributes:
        tokens: successors of each token, ``(vocab, k)``, most likely first.
        logits: their logits, ``(vocab, k)``, in half precision.
    """

    tokens: np.ndarray
    logits: np.ndarray
    num_known: int = 0

    @classmethod
    def unknown(cls, vocab_size: int = 0, k: int = 0) -> Self:
        """Return an empty table."""
        return cls(np.zeros((vocab_size, k), np.int32), np.zeros((vocab_size, k), np.float16))

    @property
    def is_whole(self) -> bool:
        """True if the successors of all tokens are known."""
        return self.num_known == len(self.tokens)

    def of(self, token: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
        """Return the ``k`` most likely successors and their logits, or None if they aren't known."""
        if token >= self.num_known:
            return None
        return tuple(self.tokens[token, :k].tolist()), tuple(self.logits[token, :k].tolist())

    def add(self, tokens: np.ndarray, logits: np.ndarray) -> None:
        """Append the successors of the next tokens and their logits, ``(tokens, k)`` each."""
        end = self.num_known + len(tokens)
        self.tokens[self.num_known : end] = tokens
        self.logits[self.num_known : end] = np.nan_to_num(logits, nan=-_LARGEST).clip(-_LARGEST, _LARGEST)
        self.num_known = end

    def save(self, path: Path) -> None:
        """Write the known part of the table to a file, atomically.

        Raises:
            OSError: if it can't be written.
        """
        known = slice(self.num_known)
        arrays = {"made_for": self._made_for(path), "tokens": self.tokens[known], "logits": self.logits[known]}
        replace_file(path, lambda file: np.savez(file, allow_pickle=False, **arrays))

    @classmethod
    def load(cls, path: Path, vocab_size: int, k: int) -> Self:
        """Return the table of a file, or an empty table if the file is missing, damaged, or from elsewhere.

        Checks the file's name, dtypes and shapes, ids within the vocabulary, and finite logits in descending order.
        """
        table = cls.unknown(vocab_size, k)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                made_for, tokens, logits = held["made_for"], held["tokens"], held["logits"]
        except Exception:  # a damaged archive raises anything; the table is computed again
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
        """Return the mark of a file with this name and shape, so that renamed files aren't read."""
        return np.array(f"specdec successors 2 {path.stem} {self.tokens.shape}")

    def _fits(self, tokens: np.ndarray, logits: np.ndarray) -> bool:
        """Return True for valid first rows of this table."""
        return bool(
            tokens.ndim == 2
            and (tokens.dtype, logits.dtype) == (self.tokens.dtype, self.logits.dtype)
            and tokens.shape == logits.shape == (len(tokens), self.tokens.shape[1])
            and len(tokens) <= len(self.tokens)
            and ((tokens >= 0) & (tokens < len(self.tokens))).all()
            and np.isfinite(logits).all()
            and (logits[:, 1:] <= logits[:, :-1]).all()
        )
