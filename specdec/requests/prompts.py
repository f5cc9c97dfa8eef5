"""Prompts in every accepted form, as token ids."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np
import torch

from specdec.errors import RequestError
from specdec.inputs.chat_templates import text_of_part, with_defined_fields, with_parts_if_needed

_NO_OPTIONS: Mapping[str, Any] = {}
_FORMS = "text, chat messages ({'role': …, 'content': …}), token ids or a tensor; one of these or a list of them"


def as_list(prompt: Any) -> tuple[list[Any], bool]:
    """Return the prompts, and whether they were passed as a list.

    Raises:
        RequestError: for tensors and arrays of other shapes, and for a tokenizer's output.
    """
    if isinstance(prompt, torch.Tensor | np.ndarray):
        if prompt.ndim not in (1, 2):
            raise RequestError(f"a tensor prompt has shape (tokens,) or (batch, tokens), not {tuple(prompt.shape)}")
        return (list(prompt), True) if prompt.ndim == 2 else ([prompt], False)
    first = prompt[0] if isinstance(prompt, list | tuple) and prompt else prompt
    if isinstance(first, Mapping) and "input_ids" in first:
        said = "'s output was given as one of the prompts: "
        if first.keys() - {"input_ids", "attention_mask", "token_type_ids"}:
            raise RequestError(f"a processor{said}unpack it, generate(**processor(…))")
        raise RequestError(f"a tokenizer{said}give its input_ids, without padding")
    if isinstance(prompt, list | tuple) and prompt and not _is_one(prompt):
        return list(prompt), True
    return [prompt], False


def _is_one(prompt: Sequence[Any]) -> bool:
    """Return True if a list is one prompt: token ids, valid or not, or chat messages."""
    return isinstance(prompt[0], Integral | Mapping) or all(isinstance(token, Number) for token in prompt)


def is_chat(prompt: Any) -> bool:
    """Return True for chat messages."""
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)


def encode(prompt: Any, tokenizer: Any | None, vocab_size: int, template: Mapping[str, Any] = _NO_OPTIONS) -> list[int]:
    """Encode one prompt.

    If the last chat message is the assistant's, it is continued, not answered.

    Args:
        template: options of the chat template.

    Raises:
        RequestError: for an empty prompt, an unknown form, text without a tokenizer, or ids outside the vocabulary.
    """
    ids = _ids(prompt, tokenizer, template)
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    return checked_ids(ids, vocab_size, "prompt", _FORMS)


def checked_ids(ids: Sequence[Any], vocab_size: int, name: str, forms: str) -> list[int]:
    """Return token ids as integers.

    Args:
        name: "prompt" or "reference", for messages.
        forms: what it may be.

    Raises:
        RequestError: for other values, and ids outside the vocabulary.
    """
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise RequestError(f"the {name}'s token {index} is {token!r}, not an integer id; a {name} is {forms}")
        if not 0 <= int(token) < vocab_size:
            raise RequestError(
                f"the {name}'s token {index} is {token}, but ids go from 0 to {vocab_size - 1}: "
                "was it encoded by another model's tokenizer?"
            )
    return [int(token) for token in ids]


def _ids(prompt: Any, tokenizer: Any | None, template: Mapping[str, Any]) -> list[int]:
    if is_chat(prompt):
        return _chat_ids(prompt, _needed(tokenizer, "chat messages need"), template)
    if template:
        raise RequestError(f"{', '.join(template)}: only chat messages have a template")
    if isinstance(prompt, np.ndarray | torch.Tensor):
        _check_array(prompt)
        return [int(token) for token in prompt.tolist()]
    if isinstance(prompt, str):
        return text_ids(prompt, tokenizer, "a text prompt needs") if prompt else []
    if isinstance(prompt, list | tuple):
        return list(prompt)
    if isinstance(prompt, Mapping) and "role" in prompt:
        raise RequestError("one chat message was given: put it in a list, [{'role': …, 'content': …}]")
    raise RequestError(f"a prompt of type {type(prompt).__name__} was given; a prompt is {_FORMS}")


def _check_array(prompt: np.ndarray | torch.Tensor) -> None:
    if isinstance(prompt, np.ndarray):
        if prompt.size and (prompt.dtype.kind not in "iu" or prompt.ndim != 1):
            raise RequestError(f"an array prompt holds integer ids, (tokens,), not {prompt.dtype} {prompt.shape}")
        return
    if prompt.dtype.is_floating_point or prompt.dtype.is_complex or prompt.dtype == torch.bool:
        raise RequestError(f"a tensor prompt holds integer ids, not {prompt.dtype}")
    if prompt.ndim != 1:
        raise RequestError(f"a tensor in a list of prompts has shape (tokens,), not {tuple(prompt.shape)}")


def _chat_ids(messages: Sequence[Any], tokenizer: Any, template: Mapping[str, Any]) -> list[int]:
    if not (getattr(tokenizer, "chat_template", None) or template.get("chat_template")):
        raise RequestError(
            "chat messages were given, but the tokenizer has no chat template: give text (on the command line, without "
            "--chat), or set tokenizer.chat_template"
        )
    messages = [_plain(message) for message in with_defined_fields(messages)]
    is_continued = isinstance(messages[-1], Mapping) and messages[-1].get("role") == "assistant"
    options = {"add_generation_prompt": not is_continued, **template}
    if is_continued:
        options.setdefault("continue_final_message", True)
    messages = with_parts_if_needed(messages, tokenizer, template)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # templates run third-party code
        rejected = f"the tokenizer's chat template rejected the messages: {error}"
        for index, message in enumerate(messages):
            if isinstance(message, Mapping) and "content" not in message and not message.get("tool_calls"):
                raise RequestError(
                    f"chat message {index} has no 'content': a message is {{'role': {message['role']!r}, 'content': …}}"
                    f"; {rejected}"
                ) from error
        raise RequestError(rejected) from error
    return text_ids(text, tokenizer, add_special_tokens=False)


def _plain(message: Any) -> Any:
    """Return a message as templates of text accept it: its text parts joined."""
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list | tuple):
        return message
    texts = list(map(text_of_part, parts))
    kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in parts]
    if others := {str(kind) for kind, text in zip(kinds, texts, strict=True) if text is None}:
        raise RequestError(f"a message has parts that aren't text: {', '.join(sorted(others))}")
    return {**message, "content": "".join(text for text in texts if text)}


def text_ids(text: str, tokenizer: Any | None, purpose: str = "text needs", **options: bool) -> list[int]:
    """Encode a text; ``purpose`` says what needs the tokenizer.

    Raises:
        RequestError: without a tokenizer, or for a text that it rejects.
    """
    tokenizer = _needed(tokenizer, purpose)
    try:
        return list(tokenizer(text, **options)["input_ids"])
    except Exception as error:  # such as a TypeError for half of a surrogate pair
        raise RequestError(f"the tokenizer rejected the text {text[:40]!r}: {error}") from error


def _needed(tokenizer: Any | None, purpose: str) -> Any:
    if tokenizer is None:
        raise RequestError(f"{purpose} a tokenizer: Generator(model, tokenizer), or pass token ids")
    return tokenizer
