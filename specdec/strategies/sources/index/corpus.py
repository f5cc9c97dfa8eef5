"""Documents for an index: text files, folders of them, and conversations as JSON Lines.

A line of JSON is ``{"messages": [{"role": …, "content": …}, …]}``, ``{"prompt": …, "completion": …}`` or
``{"text": …}``, a document each. Hidden files and folders are left out, and so is what isn't UTF-8.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.errors import RequestError

_NOT_TEXT = frozenset({"node_modules", "__pycache__"})  # folders
_LAYOUTS = '{"messages": […]}, {"prompt": …, "completion": …} or {"text": …}'
_PIECE = 100_000  # characters that are encoded at once; longer texts are cut at a line's end
_BATCH = 1_000_000

Messages = list[dict[str, str]]


@dataclass
class Corpus:
    """The files below some paths.

    Attributes:
        files: in the order of their names below each path.
        skipped: those that turned out to be no text, or couldn't be read.
    """

    files: list[Path]
    skipped: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "Corpus":
        """The files that paths name, and those in the folders that they name.

        Raises:
            RequestError: for a path that isn't there.
        """
        files: list[Path] = []
        for path in paths:
            if not path.exists():
                raise RequestError(f"{path} isn't there: give text files, .jsonl files, or folders of them")
            files += _below(path) if path.is_dir() else [path]
        return cls(list(dict.fromkeys(files)))

    def documents(self, path: Path) -> Iterator[str | Messages]:
        """The contents of a file: texts and conversations.

        Raises:
            RequestError: for a line of JSON that is neither.
        """
        try:
            data = path.read_bytes()
            text = data.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            self.skipped.append(path)
            return
        if "\0" in text:
            self.skipped.append(path)
        elif path.suffix != ".jsonl":
            yield text
        else:
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    yield _document(line, f"{path}, line {number}")


def _below(folder: Path) -> list[Path]:
    files = list[Path]()
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_TEXT)
        files += [Path(here) / name for name in sorted(names) if not name.startswith(".")]
    return [path for path in files if path.is_file()]


def _document(line: str, where: str) -> str | Messages:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"{where} is no JSON ({error.msg}): each line is one of {_LAYOUTS}") from None
    match entry:
        case {"messages": [*messages]} if messages and all(map(_is_message, messages)):
            return messages
        case {"prompt": str(prompt), "completion": str(completion)}:
            return prompt + completion
        case {"text": str(text)}:
            return text
    raise RequestError(f"{where} is of another layout: each line is one of {_LAYOUTS}")


def _is_message(message: object) -> bool:
    match message:
        case {"role": str(), "content": str()}:
            return True
    return False


class Encoder:
    """Documents as token ids; conversations go through the tokenizer's chat template, where it has one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, documents: Iterator[str | Messages]) -> Iterator[list[int]]:
        """The ids of each document, in order. Texts are encoded many at a time, which tokenizers do in parallel."""
        waiting, num_characters = list[list[str]](), 0
        for document in documents:
            text = document if isinstance(document, str) else self._written(document)
            waiting.append(_pieces(text))
            num_characters += len(text)
            if num_characters >= _BATCH:
                yield from self._encoded(waiting)
                waiting, num_characters = [], 0
        yield from self._encoded(waiting)

    def _written(self, messages: Messages) -> str:
        if getattr(self._tokenizer, "chat_template", None):
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        return "\n".join(message["content"] for message in messages)

    def _encoded(self, documents: list[list[str]]) -> Iterator[list[int]]:
        pieces = [piece for document in documents for piece in document]
        if pieces:
            encoded = iter(self._tokenizer(pieces, add_special_tokens=False)["input_ids"])
            for document in documents:
                yield [token for _ in document for token in next(encoded)]


def _pieces(text: str) -> list[str]:
    pieces = list[str]()
    while len(text) > _PIECE:
        cut = text.rfind("\n", 1, _PIECE)
        cut = _PIECE if cut < 0 else cut
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text] if text else pieces
