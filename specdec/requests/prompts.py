"""Whatever a caller calls a prompt, as token ids."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np
import torch

from specdec.errors import RequestError

_FORMS = "text, chat messages ({'role': …, 'content': …}), token ids or a tensor; one of these or a list of them"


def as_list(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts given, and whether they were given as a list.

    Raises:
        RequestError: for tensors and arrays of other shapes, and for a tokenizer's output.
    """
    if isinstance(prompt, torch.Tensor | np.ndarray):
        if prompt.ndim not in (1, 2):
            raise RequestError(f"a tensor prompt has shape (tokens,) or (batch, tokens), not {tuple(prompt.shape)}")
        return (list(prompt), True) if prompt.ndim == 2 else ([prompt], False)
    first = prompt[0] if isinstance(prompt, list | tuple) and prompt else prompt
    if isinstance(first, Mapping) and "input_ids" in first:
        raise RequestError(
            "a tokenizer's output was given as the prompt: pass its text, or each row's ids without padding"
        )
    if isinstance(prompt, list | tuple) and prompt and not _is_one(prompt):
        return list(prompt), True
    return [prompt], False


def _is_one(prompt: Sequence[Any]) -> bool:
    """Return True if a list is itself one prompt: token ids, be they right or wrong, or chat messages."""
    return isinstance(prompt[0], Integral | Mapping) or all(isinstance(token, Number) for token in prompt)


def encode(prompt: Any, tokenizer: Any | None, vocab_size: int) -> list[int]:
    """One prompt as token ids.

    Raises:
        RequestError: for an empty prompt, an unknown form, text without a tokenizer, or ids outside the vocabulary.
    """
    ids = _ids(prompt, tokenizer)
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise RequestError(f"the prompt's token {index} is {token!r}, not an integer id; a prompt is {_FORMS}")
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"the prompt's token {index} is {token}, but ids go from 0 to {vocab_size - 1}: "
                "was it encoded by another model's tokenizer?"
            )
    return [int(token) for token in ids]


def _ids(prompt: Any, tokenizer: Any | None) -> list[int]:
    if isinstance(prompt, np.ndarray):
        if prompt.size and (prompt.dtype.kind not in "iu" or prompt.ndim != 1):
            raise RequestError(f"an array prompt holds integer ids, (tokens,), not {prompt.dtype} {prompt.shape}")
        return [int(token) for token in prompt]
    if isinstance(prompt, torch.Tensor):
        if prompt.dtype.is_floating_point or prompt.dtype.is_complex or prompt.dtype == torch.bool:
            raise RequestError(f"a tensor prompt holds integer ids, not {prompt.dtype}")
        if prompt.ndim != 1:
            raise RequestError(f"a tensor in a list of prompts has shape (tokens,), not {tuple(prompt.shape)}")
        return [int(token) for token in prompt.tolist()]
    if isinstance(prompt, str):
        return _text_ids(prompt, _needed(tokenizer, "a text prompt")) if prompt else []
    if isinstance(prompt, list | tuple):
        if prompt and isinstance(prompt[0], Mapping):
            return _chat_ids(prompt, _needed(tokenizer, "chat messages"))
        return list(prompt)
    raise RequestError(f"a prompt of type {type(prompt).__name__} was given; a prompt is {_FORMS}")


def _chat_ids(messages: Sequence[Any], tokenizer: Any) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("chat messages were given, but the tokenizer has no chat template: format them as text")
    try:
        text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates run third-party code and raise whatever they like
        raise RequestError(f"the tokenizer's chat template refused the messages: {error}") from error
    return _text_ids(text, tokenizer, add_special_tokens=False)


def _text_ids(text: str, tokenizer: Any, **options: bool) -> list[int]:
    try:
        return list(tokenizer(text, **options)["input_ids"])
    except Exception as error:  # such as a TypeError for half of a surrogate pair
        raise RequestError(f"the tokenizer refused the text {text[:40]!r}: {error}") from error


def _needed(tokenizer: Any | None, purpose: str) -> Any:
    if tokenizer is None:
        raise RequestError(f"{purpose} needs a tokenizer: Generator(model, tokenizer), or pass token ids")
    return tokenizer
