"""Findings about a model that took a while: kept in memory and in the cache folder, for the same model on this machine.

A file holds what was found out about one fingerprint. Its name changes with the machine, torch's threads, versions and
specdec's own source files, and the fingerprint has the bits of the model's answers, so findings are valid as long as
the file is found.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

import specdec
from specdec.machine.cache_files import Remembered, read, update
from specdec.machine.cache_folder import cache_folder
from specdec.machine.facts import key_of
from specdec.models.fingerprint import fingerprint_of
from specdec.models.state import notes_of

Finding = TypeVar("Finding")
_FOLDER = "findings"
_MOST_FILES = 256  # a few kilobytes each


class _Found(Remembered):
    """Findings by question, as JSON."""

    answers: dict[str, str]


def recalled(
    model: object,
    question: str,
    kind: type[Finding],
    find: Callable[[], Finding],
    is_shared: bool = False,
    keeps: Callable[[Finding], bool] = lambda _: True,
) -> Finding:
    """Return a finding about the model as it is now: from memory, from the cache folder, or found out and kept there.

    Args:
        question: everything that the finding depends on besides the model, as text.
        kind: the finding's class, such as a frozen dataclass.
        is_shared: other processes find it out at the same time, and must do the same passes: the folder isn't read.
        keeps: returns False for a finding that later processes shouldn't rely on.
    """
    notes = notes_of(model)
    with notes.lock:
        fingerprint = fingerprint_of(model)
        key = key_of(fingerprint, _source_files())
        facts = notes.facts_in(key)
        if question not in facts:
            path = None if is_shared or not fingerprint.tells else _path(key)
            known = None if path is None else _read(path, question, kind)
            facts[question] = find() if known is None else known
            if path is not None and known is None and keeps(facts[question]):
                _keep(path, question, TypeAdapter(kind).dump_json(facts[question]).decode())
        found: Finding = facts[question]
        return found


def _source_files() -> tuple[int, int, int]:
    """Return the number, the size and the last change of specdec's files: who edits a probe gets its new findings."""
    facts = [path.stat() for path in Path(specdec.__file__).parent.rglob("*.py")]
    return len(facts), sum(each.st_size for each in facts), max(each.st_mtime_ns for each in facts)


def _path(key: str) -> Path:
    return cache_folder() / _FOLDER / f"{key}.json"


def _read(path: Path, question: str, kind: type[Finding]) -> Finding | None:
    found = read(path, _Found)
    if found is not None and question in found.answers:
        with suppress(ValidationError):
            return TypeAdapter(kind).validate_json(found.answers[question])
    return None


def _keep(path: Path, question: str, answer: str) -> None:
    """Add an answer to a file; where that can't be written, it is found out again next time."""

    def added(found: _Found | None) -> _Found:
        return _Found(answers={**(found.answers if found else {}), question: answer})

    if not path.exists():
        _make_room(path.parent)
    update(path, _Found, added)


def _make_room(folder: Path) -> None:
    """Remove the oldest files: a model that is trained has another fingerprint at each generator."""
    with suppress(OSError):
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) + 1 - _MOST_FILES]:
            path.unlink(missing_ok=True)
