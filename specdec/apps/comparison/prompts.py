"""Prompt sets: the built-in prompts, or a JSON Lines file in one of the usual forms."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec import demo
from specdec.errors import RequestError, plural

_MOST_FAULTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """A prompt to compare strategies on: text, token ids or chat messages, and the category to report it under.

    ``is_instruction``: the text asks for an answer, so it goes through a chat template if there is one.
    """

    category: str
    name: str
    prompt: Any
    is_instruction: bool = False


def demo_prompts() -> list[EvaluationPrompt]:
    """The built-in prompts: beginnings of texts, and instructions."""
    return [EvaluationPrompt(each.category, each.name, each.text, each.is_instruction) for each in demo.prompts()]


def named(prompts: Sequence[EvaluationPrompt | Any]) -> list[EvaluationPrompt]:
    """Wrap prompts of any kind as ``EvaluationPrompt``; prompts without a name are numbered.

    Raises:
        RequestError: a single prompt was passed.
    """
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        raise RequestError("prompts is a single prompt: pass a list")
    return [
        given if isinstance(given, EvaluationPrompt) else EvaluationPrompt("prompts", f"prompt {index}", given)
        for index, given in enumerate(prompts)
    ]


def load_prompts(path: Path) -> list[EvaluationPrompt]:
    """Read the prompts of a JSON Lines file.

    A line has ``prompt`` (text), ``prompt_ids``, ``messages``, or ``turns`` as in Spec-Bench, of which the first is
    read as an instruction. ``category`` defaults to the file's name. The prompt's name is its ``name``, ``task_id``,
    ``question_id`` or ``id``, else the line's number.

    Raises:
        RequestError: the file can't be read or has no prompts, or lines are invalid; the message has their numbers.

    Warns:
        UserWarning: if prompts have several turns, of which all but the first are left out.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would split at U+2028 as well
    except OSError as error:
        raise RequestError(f"prompts {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"prompts {path}: the file is not UTF-8 text: convert it first") from error
    found: list[EvaluationPrompt] = []
    num_cut = 0
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = _row(line)
                found.append(_read(row, number, path.stem))
                num_cut += found[-1].is_instruction and len(row["turns"]) > 1
            except ValueError as error:
                faults.append(f"line {number}: {error}")
    if faults:
        more = f" (and {len(faults) - _MOST_FAULTS_SHOWN} more)" if len(faults) > _MOST_FAULTS_SHOWN else ""
        raise RequestError(f"prompts {path}: {'; '.join(faults[:_MOST_FAULTS_SHOWN])}{more}")
    if not found:
        raise RequestError(f"prompts {path}: the file has no prompts")
    if num_cut:
        of_them = f"{num_cut} of {plural(len(found), 'prompt')}"
        warnings.warn(f"prompts {path}: of {of_them}, only the first of several turns is used", stacklevel=2)
    return found


def select(
    prompts: Sequence[EvaluationPrompt], categories: Sequence[str] = (), per_category: int | None = None
) -> list[EvaluationPrompt]:
    """The prompts of ``categories`` (default: all), at most ``per_category`` of each.

    Raises:
        RequestError: no prompt has a category.
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
    """Turn texts into chat messages; token ids and messages are returned as is.

    Args:
        chat: True for all texts, False for none, None for instructions if the tokenizer has a chat template.

    Raises:
        RequestError: ``chat`` is True and the tokenizer has no template.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise RequestError("chat=True needs a chat template, and the tokenizer has none: leave --chat out")
    if not has_template or chat is False:
        return list(prompts)
    return [
        replace(given, prompt=as_messages(given.prompt))
        if isinstance(given.prompt, str) and (chat or given.is_instruction)
        else given
        for given in prompts
    ]


def are_messages(value: Any) -> bool:
    """True for chat messages, as opposed to text or token ids."""
    return isinstance(value, list) and all(isinstance(each, dict) and "role" in each for each in value)


def as_messages(text: str) -> list[dict[str, str]]:
    """A user's message in the form of chat templates."""
    return [{"role": "user", "content": text}]


def _row(line: str) -> dict[str, Any]:
    """Read one line; raises ValueError with the fault."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}, not an object")
    return row


def _read(row: dict[str, Any], number: int, stem: str) -> EvaluationPrompt:
    """Return a line's prompt; raises ValueError with the fault."""
    names = [row[key] for key in ("name", "task_id", "question_id", "id") if key in row]
    name = str(names[0] if names else f"line {number}")
    return EvaluationPrompt(str(row.get("category", stem)), name, *_prompt(row))


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _are_turns(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], str) and bool(value[0])


_FORMS = {"prompt": lambda value: isinstance(value, str), "prompt_ids": _are_ids, "messages": are_messages}


def _prompt(row: dict[str, Any]) -> tuple[Any, bool]:
    """The prompt, and True if it is an instruction; raises ValueError with the fault."""
    for name, fits in _FORMS.items():
        if row.get(name) and fits(row[name]):
            return row[name], False
    if row.get("turns") and _are_turns(row["turns"]):
        return row["turns"][0], True
    given = [f"{name!r} is {row[name]!r:.40}" for name in (*_FORMS, "turns") if name in row]
    wanted = "'prompt' (text), 'prompt_ids' (integers), 'messages' (with roles) or 'turns' (texts)"
    raise ValueError(f"{'; '.join(given)}: give {wanted}, not empty" if given else f"no {wanted}")
