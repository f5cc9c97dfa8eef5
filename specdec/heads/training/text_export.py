"""A target's own text as training data for other trainers, for heads that are trained elsewhere.

``specforge``: JSON Lines for SpecForge. Text that was written by the chat template is a conversation (``id``,
``conversations``), other text a rendered one (``id``, ``text``, for ``data.is_preformatted: true``).

``speculators``: JSON Lines for ``speculators prepare-data``, with the model's tokens (``input_ids``) and 1 for those of
answers (``loss_mask``), so that nothing is rendered or tokenized again.
"""

import json
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from specdec.heads.training.disk import writing_to
from specdec.heads.training.script import Script
from specdec.heads.training.text import TrainingText
from specdec.machine.cache_files import replace_file


class ExportLayout(Enum):
    """The trainers that files are written for."""

    specforge = "specforge"
    speculators = "speculators"


def write_text(path: Path, layout: ExportLayout, text: TrainingText, script: Script, tokenizer: Any) -> None:
    """Write all documents to a file, one per line.

    Args:
        path: the file, which is replaced.
        layout: the trainer that reads it.
        text: the documents.
        script: what surrounds the model's text in each.
        tokenizer: the model's.

    Raises:
        RequestError: the file can't be written.
    """
    lines = _specforge(text, script, tokenizer) if layout is ExportLayout.specforge else _speculators(text)
    with writing_to(path.parent):
        replace_file(path, lambda file: file.writelines((json.dumps(line) + "\n").encode() for line in lines))


def _speculators(text: TrainingText) -> Iterator[dict[str, Any]]:
    for index in range(len(text)):
        tokens, answer = text.document(index).tolist(), int(text.answers[index])
        yield {"input_ids": tokens, "loss_mask": [0] * answer + [1] * (len(tokens) - answer)}


def _specforge(text: TrainingText, script: Script, tokenizer: Any) -> Iterator[dict[str, Any]]:
    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    documents = [(text.document(index).tolist(), int(text.answers[index])) for index in range(len(text))]
    are_conversations = all(_is_conversation(*document, script) for document in documents)
    for index, (tokens, answer) in enumerate(documents):
        if are_conversations:
            yield {"id": str(index), "conversations": _conversation(tokens, answer, script, decode)}
        else:
            yield {"id": str(index), "text": decode(tokens)}


def _is_conversation(tokens: list[int], answer: int, script: Script) -> bool:
    """Return False for text without the template's parts, or with several turns, such as an answer to a prompt."""
    start, end, bridge = len(script.prefix), answer - len(script.bridge), script.bridge
    if not bridge or tokens[:start] != script.prefix or tokens[end:answer] != bridge:
        return False
    ending = bridge[:1] if bridge[0] in script.ends else bridge  # of a turn; others begin with ordinary tokens
    return not any(tokens[at : at + len(ending)] == ending for at in range(start, end))


def _conversation(
    tokens: list[int], answer: int, script: Script, decode: Callable[[list[int]], str]
) -> list[dict[str, str]]:
    """Return a document's two messages, without what the template puts around them."""
    end = len(tokens) - (tokens[-1] in script.ends)
    return [
        {"role": "user", "content": decode(tokens[len(script.prefix) : answer - len(script.bridge)])},
        {"role": "assistant", "content": decode(tokens[answer:end])},
    ]
