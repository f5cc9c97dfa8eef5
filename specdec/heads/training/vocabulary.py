"""The draft vocabulary: the most frequent tokens of the target's answers."""

import numpy as np
import torch

from specdec.heads.training.text import Text


def draft_vocabulary(text: Text, vocab_size: int, draft_vocab_size: int) -> torch.Tensor:
    """Return the most frequent tokens of the answers, (draft vocab,), in ascending order.

    Where answers have too few different tokens, the lowest ids fill the vocabulary.
    """
    counts = token_counts(text, vocab_size)
    chosen = np.argsort(-counts, kind="stable")[:draft_vocab_size]
    return torch.from_numpy(np.sort(chosen))


def token_counts(text: Text, vocab_size: int) -> np.ndarray:
    """Return how often each token occurs in the answers, (vocab,)."""
    is_answer = np.ones(len(text.tokens), dtype=np.int64)
    # Each document's prefix is taken out by the running sum of +1 and -1 at its ends.
    edges = np.zeros(len(text.tokens) + 1, dtype=np.int64)
    np.add.at(edges, text.offsets[:-1], 1)
    np.add.at(edges, text.offsets[:-1] + text.answers, -1)
    is_answer -= edges.cumsum()[:-1]
    return np.bincount(text.tokens[is_answer > 0], minlength=vocab_size)
