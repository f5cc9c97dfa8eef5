"""The likeliest successors of every token of the vocabulary, asked of the target once, and kept in a file."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from specdec.errors import RequestError
from specdec.machine.cache_folder import cache_folder
from specdec.strategies.sources.successors import Successors
from specdec.target import Row, Target
from specdec.tree import ROOT, DraftTree

NUM_SUCCESSORS = 8  # of each token
_WIDTH = 128  # tokens of a pass
_NUM_ASKED_FIRST = 16  # tokens whose successors tell one model's file from another's
_WORTH_KEEPING = 0.5  # seconds of work


def work_out_successors(  # noqa: PLR0913 - a folder and a clock are given by tests
    target: Target,
    first: int,
    seconds: float,
    folder: Path | None = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    known: Successors | None = None,
    on_progress: Callable[[Successors], object] = lambda _: None,
    must_keep: bool = False,
) -> Successors:
    """Ask a target what it thinks likely behind each token alone, going on where an earlier call ended.

    A pass has many tokens below one ``first`` token, none of which sees another. Tokens come in the order of their ids:
    byte-pair vocabularies have the most frequent first.

    Args:
        seconds: after the first pass, none begins later than this; 0 reads what the folder has.
        known: an earlier call's answer, which is added to.
        folder: where the tables of all models are kept; specdec's among the user's caches if not given.
        on_progress: told of the table before each pass.
        must_keep: the table is wanted in its file; otherwise it is kept there if it took a while and can be.

    Raises:
        RequestError: if the file can't be written and must be.
    """
    vocab_size = target.shapes.vocab_size
    k = min(NUM_SUCCESSORS, vocab_size)
    if not target.shapes.takes_trees:
        return Successors.unknown()
    began, row = clock(), target.open(1)
    try:
        asked = range(0, vocab_size, max(1, vocab_size // _NUM_ASKED_FIRST))
        answers = _ask(target, row, first, asked, k)[0]
        name = hashlib.sha256(repr((vocab_size, first, answers.tolist())).encode()).hexdigest()[:32]
        path = (cache_folder() if folder is None else folder) / "successors" / f"{name}.npz"
        table = Successors.load(path, vocab_size, k) if known is None else known
        num_held = table.num_known
        try:
            while seconds > 0 and not table.is_whole:
                on_progress(table)
                following = range(table.num_known, min(table.num_known + _WIDTH, vocab_size))
                table.add(*_ask(target, row, first, following, k))
                if clock() - began >= seconds:
                    break
        finally:  # an interrupted call loses nothing
            is_worth_it = must_keep or table.is_whole or clock() - began > _WORTH_KEEPING
            if (table.num_known > num_held or not path.exists()) and table.num_known and is_worth_it:
                _keep(table, path, k, must_keep)
    finally:
        target.release(row)
    return table


def _keep(table: Successors, path: Path, k: int, must_keep: bool) -> None:
    """Write the table, unless another process has written one that knows as much."""
    if Successors.load(path, len(table.tokens), k).num_known >= table.num_known:
        return
    try:
        table.save(path)
    except OSError as error:
        if must_keep:  # else it is worked out again
            raise RequestError(f"the likely successors of this model's tokens can't be kept: {error}") from None


def _ask(target: Target, row: Row, first: int, tokens: Iterable[int], k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` likeliest successors of some tokens behind ``first``, and their logits."""
    tree = DraftTree(first)
    nodes: Sequence[int] = [tree.add(ROOT, token) for token in tokens]
    tree.wanted = nodes
    planned = target.compile({row: tree})
    ids, logits = target.forward(planned).rows[row].output.top_logits(k)
    return np.array(ids[0], np.int32), np.array(logits[0], np.float32)
