"""The vocabulary prior of token recycling: what the target predicts after each token alone.

The target computes it once, in idle time; a file in specdec's cache folder retains it for later loads.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from specdec.errors import RequestError
from specdec.machine.cache_files import replace_file
from specdec.machine.cache_folder import cache_folder
from specdec.target import CacheRow, Target
from specdec.tree import ROOT, DraftTree

NUM_SUCCESSORS = 8  # of each token
_WIDTH = 128  # tokens of a pass
_NUM_SAMPLED = 16  # tokens whose successors identify the model, and so its file
_WORTH_SAVING = 0.5  # seconds of work
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
        """Return the table of a file, or an empty table if the file is missing, damaged, or made for another model."""
        table = cls.unknown(vocab_size, k)
        with suppress(Exception), path.open("rb") as file, np.load(file, allow_pickle=False) as held:  # checks its sums
            if held["made_for"] == table._made_for(path):
                table.add(held["tokens"], held["logits"])
        return table

    def _made_for(self, path: Path) -> np.ndarray:
        """Return the mark of a file with this name and shape, so that renamed files aren't read."""
        return np.array(f"specdec successors 2 {path.stem} {self.tokens.shape}")


class VocabularyPrior:
    """A table of each token's most likely successors, extended while the target is idle.

    A pass has many tokens below ``preceding``; no token sees another. Tokens are taken in the order of their ids, since
    byte-pair vocabularies have the most frequent tokens first.

    Args:
        idle_target: see ``Host``.
        preceding: the token before each token; models treat the first token of a text differently.
        folder: the folder of all models' files (default: specdec's cache folder).
        clock: returns seconds.
    """

    def __init__(
        self,
        idle_target: Callable[[], Target | None],
        preceding: int,
        folder: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.table = SuccessorTable.unknown()
        self._idle_target, self._preceding = idle_target, preceding
        self._folder, self._clock = folder, clock
        self._path: Path | None = None  # of the model's file, set by the first call of ``prepare``
        self._has_read = False  # the file

    def prepare(self, on_progress: Callable[[int, int], object], seconds: float) -> bool:
        """Extend the table for some seconds, as ``Engine.prepare``; 0 seconds only read the file.

        Raises:
            RequestError: if ``seconds`` are infinite, for a model that doesn't support trees, or if the file can't be
                written. With a limit, the table is computed again by the next load.
        """
        must_save, target = math.isinf(seconds), self._idle_target()
        if target is None or (self._path is not None and self.table.is_whole and not must_save):
            return True
        if not target.shapes.takes_trees:
            if must_save:
                remedy = "" if target.backend.runs_layers else "; backend='hf' may support them"
                raise RequestError(f"prepare() needs a model that supports tree drafts, and this one doesn't{remedy}")
            return True
        row = target.open(1)
        try:
            if self._path is None:
                self._path = self._file(target, row)
            self._extend(target, row, self._path, on_progress, seconds)
        finally:
            target.release(row)
        return self.table.is_whole

    def _file(self, target: Target, row: CacheRow) -> Path:
        """Return the model's file, named after the successors of some tokens."""
        vocab_size = target.shapes.vocab_size
        tokens, _ = self._ask(target, row, range(0, vocab_size, max(1, vocab_size // _NUM_SAMPLED)))
        name = hashlib.sha256(repr((vocab_size, self._preceding, tokens.tolist())).encode()).hexdigest()[:32]
        return (self._folder or cache_folder()) / "successors" / f"{name}.npz"

    def _extend(
        self, target: Target, row: CacheRow, path: Path, on_progress: Callable[[int, int], object], seconds: float
    ) -> None:
        began, vocab_size, must_save = self._clock(), target.shapes.vocab_size, math.isinf(seconds)
        if must_save or not self._has_read:
            self._has_read = True
            saved = SuccessorTable.load(path, vocab_size, min(NUM_SUCCESSORS, vocab_size))
            if saved.num_known >= self.table.num_known:
                self.table = saved
        num_before = self.table.num_known
        try:
            while seconds > 0 and not self.table.is_whole:
                num_known = self.table.num_known
                on_progress(num_known, vocab_size)
                self.table.add(*self._ask(target, row, range(num_known, min(num_known + _WIDTH, vocab_size))))
                if self._clock() - began >= seconds:
                    break
        finally:  # an interrupted call loses nothing
            is_worth_it = self.table.is_whole or self._clock() - began > _WORTH_SAVING
            if must_save or (is_worth_it and self.table.num_known > num_before):
                _save(self.table, path, must_save)

    def _ask(self, target: Target, row: CacheRow, tokens: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the successors of some tokens and their logits, ``(tokens, k)`` each."""
        tree = DraftTree(self._preceding)
        tree.wanted = [tree.add(ROOT, token) for token in tokens]
        output = target.forward(target.compile({row: tree})).rows[row]
        ids, logits = output.output.top_logits(min(NUM_SUCCESSORS, target.shapes.vocab_size))
        return np.array(ids[0], np.int32), np.array(logits[0], np.float32)


def _save(table: SuccessorTable, path: Path, must_save: bool) -> None:
    """Write the table, unless another process has written one that knows as much."""
    if SuccessorTable.load(path, *table.tokens.shape).num_known >= table.num_known:
        return
    try:
        table.save(path)
    except OSError as error:
        if must_save:
            raise RequestError(f"the likely successors of this model's tokens can't be saved: {error}") from None


def preceding_token(tokenizer: Any | None) -> int:
    """Return a token that most others may follow: the comma, or id 0 without a tokenizer."""
    if tokenizer is None:
        return 0
    try:
        return int(tokenizer.encode(",", add_special_tokens=False)[-1])
    except Exception:  # a tokenizer of the caller's own
        return 0
