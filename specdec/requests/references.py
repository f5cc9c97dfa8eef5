"""References, texts that answers are expected to resemble, in every accepted form."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from specdec.decoding.strategy import Strategy
from specdec.errors import RequestError
from specdec.requests.prompts import checked_ids, text_ids

_FORMS = "text or token ids; for several prompts, one for all or a list with one for each"


def as_references(reference: Any) -> Sequence[Any]:
    """Return the references as a caller writes them: one for all prompts, one for each, or none."""
    reference = _as_list(reference)
    if reference is None:
        return ()
    is_list = isinstance(reference, list | tuple) and reference and not isinstance(reference[0], Integral)
    return reference if is_list else [reference]


def encode_reference(reference: Any, strategy: Strategy, tokenizer: Any | None, vocab_size: int) -> list[int]:
    """Return the ids of one request's reference; an empty list for None.

    Text is encoded without the special tokens that begin a prompt, because an answer has none.

    Raises:
        RequestError: for a strategy that doesn't read it, text without a tokenizer, an unknown form, or ids outside the
            vocabulary.
    """
    if reference is None:
        return []
    if not strategy.reads_reference:
        raise RequestError(
            f"{strategy.name} doesn't draft from a reference: use proposer='auto', add it to a merge, as in "
            "'prompt_lookup+reference', or leave reference out"
        )
    reference = _as_list(reference)
    if isinstance(reference, str):
        return text_ids(reference, tokenizer, "a text as reference needs", add_special_tokens=False)
    if not isinstance(reference, list | tuple):
        raise RequestError(f"a reference of type {type(reference).__name__} was given; a reference is {_FORMS}")
    return checked_ids(reference, vocab_size, "reference", _FORMS)


def _as_list(reference: Any) -> Any:
    if isinstance(reference, range):
        return list(reference)
    return reference.tolist() if isinstance(reference, torch.Tensor | np.ndarray) else reference
