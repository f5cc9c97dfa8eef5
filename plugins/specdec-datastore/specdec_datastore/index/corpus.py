"""Documents for an index: text files, folders of them, and conversations as JSON Lines.

Each line of JSON is a document: ``{"messages": [{"role": …, "content": …}, …]}``, ``{"prompt": …, "completion": …}`` or
``{"text": …}``. Hidden files and folders are left out, and so are files that aren't UTF-8.
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
_PIECE = 100_000  # characters encoded at a time; longer texts are cut at the end of a line
_BATCH = 1_000_000

Messages = list[dict[str, str]]


@dataclass
class Corpus:
    """The files below some paths.

    Attributes:
        files: in the order of their names below each path.
        skipped: files that aren't text, or couldn't be read.
    """

    files: list[Path]
    skipped: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "Corpus":
        """Return the corpus of some files, and of all files in some folders.

        Raises:
            RequestError: for a path that doesn't exist.
        """
        files: list[Path] = []
        for path in paths:
            if not path.exists():
                raise RequestError(f"{path} doesn't exist: give text files, .jsonl files, or folders of them")
            files += _below(path) if path.is_dir() else [path]
        return cls(list(dict.fromkeys(files)))

    def documents(self, path: Path) -> Iterator[str | Messages]:
        """Yield the documents of a file: texts and conversations.

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
        raise RequestError(f"{where} isn't JSON ({error.msg}): each line is one of {_LAYOUTS}") from None
    match entry:
        case {"messages": [*messages]} if messages and all(map(_is_message, messages)):
            return messages
        case {"prompt": str(prompt), "completion": str(completion)}:
            return prompt + completion
        case {"text": str(text)}:
            return text
    raise RequestError(f"{where} has an unknown layout: each line is one of {_LAYOUTS}")


def _is_message(message: object) -> bool:
    match message:
        case {"role": str(), "content": str()}:
            return True
    return False


class Encoder:
    """Encodes documents as token ids; conversations with the tokenizer's chat template, if it has one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, documents: Iterator[str | Messages]) -> Iterator[list[int]]:
        """Yield the ids of each document, in order; texts are encoded in batches, which tokenizers do in parallel."""
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
