"""The turns of a conversation, as chat messages and as a file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from specdec.errors import RequestError, in_one_line


class Turn(BaseModel):
    """A question and its answer, or the part of the answer before it was stopped.

    Attributes:
        attachments: images and recordings before the question, as parts of its message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    answer: str
    attachments: tuple[dict[str, Any], ...] = ()


class Conversation(BaseModel):
    """A conversation so far; immutable, so each method returns another one.

    Attributes:
        format: identifies the files of conversations.
        system: the system prompt; None for the template's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["specdec chat 1"] = "specdec chat 1"
    system: str | None = None
    turns: tuple[Turn, ...] = ()

    def asking(self, question: str, attachments: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the chat messages with a new question."""
        messages: list[dict[str, Any]] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            messages += [_asked(turn.question, turn.attachments), {"role": "assistant", "content": turn.answer}]
        return [*messages, _asked(question, attachments)]

    def after_system_prompt(self, system: str | None) -> Self:
        """Return the same turns with another system prompt."""
        return self.model_copy(update={"system": system})

    def followed_by(self, turn: Turn) -> Self:
        """Return the conversation with one more turn."""
        return self.model_copy(update={"turns": (*self.turns, turn)})

    def without_last(self) -> Self:
        """Return the conversation without its last turn."""
        return self.model_copy(update={"turns": self.turns[:-1]})

    def without_oldest(self, num_turns: int) -> Self:
        """Return the conversation without its first ``num_turns`` turns."""
        return self.model_copy(update={"turns": self.turns[num_turns:]})

    def save(self, path: Path) -> None:
        """Write the conversation to a file, replacing it atomically.

        Raises:
            RequestError: if the file can't be written.
        """
        unfinished = path.parent / f"{path.name}.unfinished"
        try:
            unfinished.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
            os.replace(unfinished, path)
        except (OSError, ValueError) as error:
            unfinished.unlink(missing_ok=True)
            raise RequestError(f"{path} can't be written: {in_one_line(error)}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a conversation from a file.

        Raises:
            RequestError: if the file can't be read, or isn't a conversation.
        """
        try:
            found = cls.model_validate_json(path.read_text(encoding="utf-8-sig"), strict=True)
        except ValidationError as error:
            raise RequestError(f"{path} isn't a conversation written by /save ({in_one_line(error)})") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or in_one_line(error)
            raise RequestError(f"{path} can't be read: {reason}") from error
        if "format" not in found.model_fields_set:
            raise RequestError(f"{path} isn't a conversation written by /save (it has no format)")
        return found


def _asked(question: str, attachments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a question's message; one of text alone is what every template reads."""
    return {"role": "user", "content": [*attachments, {"type": "text", "text": question}] if attachments else question}
