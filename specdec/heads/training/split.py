"""The text of a run in packed rows: to train on, and held out for evaluations."""

import warnings
from dataclasses import dataclass

import numpy as np

from specdec.errors import ModelError, plural
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.settings import HeadSettings
from specdec.heads.training.text import Text

_HELD_OUT_ROWS = 64


@dataclass(frozen=True, slots=True)
class SplitText:
    """Documents to train on and to evaluate on, the same ones when a run is resumed.

    Attributes:
        rows: packed, to train on.
        held_out: packed, to evaluate on.
    """

    rows: PackedRows
    held_out: PackedRows

    @classmethod
    def of(cls, text: Text, settings: HeadSettings, rows_per_batch: int, writer: str) -> "SplitText":
        """Split and pack a text, without the documents whose answers begin after a row's end.

        Args:
            text: to split.
            settings: length of rows, share of held-out documents and seed.
            rows_per_batch: the fewest rows to train on.
            writer: the name of the model that wrote the text.

        Raises:
            ModelError: too little text.

        Warns:
            UserWarning: if documents are left out.
        """
        shuffle, length = np.random.default_rng(settings.seed), settings.row_length
        indices = np.arange(len(text))
        is_held_out = indices % settings.held_out_every == settings.held_out_every - 1
        is_long = text.answers >= length
        rows = pack(text.select(indices[~is_held_out & ~is_long]), length, shuffle)
        held_out = pack(text.select(indices[is_held_out & ~is_long]), length, shuffle)[:_HELD_OUT_ROWS]
        if len(rows) < rows_per_batch or not len(held_out):
            left_out = f", {is_long.sum()} after prompts of {length} tokens or more, which are left out"
            raise ModelError(
                f"{writer} wrote {plural(len(text), 'different text')} of {text.num_answer_tokens:,} tokens"
                f"{left_out if is_long.any() else ''}, too little to train on: allow more minutes, or give "
                f"{'shorter ' if is_long.any() else ''}prompts that it answers (--prompts)"
            )
        if is_long.any():
            of_them = f"{is_long.sum()} of {plural(len(text), 'written text')}"
            warnings.warn(f"{of_them} left out: their prompts have {length} tokens or more", stacklevel=2)
        return cls(rows, held_out)
