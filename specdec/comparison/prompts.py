"""Prompt sets: the built-in prompts, or a JSON Lines file in one of the forms that evaluations come in."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec import demo
from specdec.errors import RequestError

_MOST_FAULTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """A prompt to compare strategies on: text, token ids or chat messages, with a category to report it under.

    ``is_instruction``: its text asks for an answer, and isn't to be continued as it stands.
    """

    category: str
    name: str
    prompt: Any
    is_instruction: bool = False


def demo_prompts() -> list[EvaluationPrompt]:
    """The prompts of the built-in model."""
    return [EvaluationPrompt(prompt.category, prompt.name, prompt.text) for prompt in demo.prompts()]


def named(prompts: Sequence[EvaluationPrompt | Any]) -> list[EvaluationPrompt]:
    """Prompts of any kind, those without a name numbered.

    Raises:
        RequestError: for a single prompt.
    """
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        raise RequestError("one prompt was given: give a list of them")
    return [
        given if isinstance(given, EvaluationPrompt) else EvaluationPrompt("prompts", f"prompt {index}", given)
        for index, given in enumerate(prompts)
    ]


def load_prompts(path: Path) -> list[EvaluationPrompt]:
    """The prompts of a JSON Lines file.

    A line has ``prompt`` (text), ``prompt_ids`` or ``messages``; or ``turns``, of which the first is taken, as in
    Spec-Bench, and is an instruction. Its ``category`` is kept (without one, it is the file's name), and it is
    called by its ``name``, ``task_id``, ``question_id`` or ``id``, or by its line's number.

    Raises:
        RequestError: for a file that can't be read or has no prompts; and for lines that are none of these, by number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would split at U+2028 as well
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"prompts {path}: {error}") from error
    found: list[EvaluationPrompt] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_read(line, number, path.stem))
            except ValueError as error:
                faults.append(f"line {number}: {error}")
    if faults:
        more = f" (and {len(faults) - _MOST_FAULTS_SHOWN} more)" if len(faults) > _MOST_FAULTS_SHOWN else ""
        raise RequestError(f"prompts {path}: {'; '.join(faults[:_MOST_FAULTS_SHOWN])}{more}")
    if not found:
        raise RequestError(f"prompts {path}: the file has no prompts")
    return found


def select(
    prompts: Sequence[EvaluationPrompt], categories: Sequence[str] = (), per_category: int | None = None
) -> list[EvaluationPrompt]:
    """The prompts of some categories (all, where none is named), at most so many of each.

    Raises:
        RequestError: for a category that no prompt has.
    """
    known = dict.fromkeys(prompt.category for prompt in prompts)
    for category in categories:
        if category not in known:
            raise RequestError(f"category {category!r} is unknown: there are {', '.join(known)}")
    chosen = []
    for category in known:
        if not categories or category in categories:
            chosen += [prompt for prompt in prompts if prompt.category == category][:per_category]
    return chosen


def as_chat(
    prompts: Sequence[EvaluationPrompt], tokenizer: Any | None, chat: bool | None = None
) -> list[EvaluationPrompt]:
    """The prompts, texts as chat messages where that is wanted; token ids and messages stay what they are.

    Args:
        chat: True for all texts, False for none; None for instructions, where the tokenizer has a chat template.

    Raises:
        RequestError: where all are wanted and there is no template.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise RequestError("chat messages are asked for, but the tokenizer has no chat template: leave --chat out")
    if not has_template or chat is False:
        return list(prompts)
    return [
        replace(given, prompt=as_messages(given.prompt))
        if isinstance(given.prompt, str) and (chat or given.is_instruction)
        else given
        for given in prompts
    ]


def as_messages(text: str) -> list[dict[str, str]]:
    """A user's message, as chat templates take it."""
    return [{"role": "user", "content": text}]


def _read(line: str, number: int, stem: str) -> EvaluationPrompt:
    """Raises ValueError, with what is wrong."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}, not an object")
    names = [row[key] for key in ("name", "task_id", "question_id", "id") if key in row]
    name = str(names[0] if names else f"line {number}")
    return EvaluationPrompt(str(row.get("category", stem)), name, *_prompt(row))


def _prompt(row: dict[str, Any]) -> tuple[Any, bool]:
    """The prompt, and True if it is an instruction. Raises ValueError, with what is wrong."""
    if isinstance(row.get("prompt"), str) and row["prompt"]:
        return row["prompt"], False
    ids = row.get("prompt_ids")
    if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
        return ids, False
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages):
        return messages, False
    turns = row.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0]:
        return turns[0], True
    given = [f"{name!r} is {row[name]!r:.40}" for name in ("prompt", "prompt_ids", "messages", "turns") if name in row]
    wanted = "'prompt' (text), 'prompt_ids' (integers), 'messages' (with roles) or 'turns' (texts)"
    raise ValueError(f"{'; '.join(given)}: give {wanted}, not empty" if given else f"no {wanted}")
