"""Findings about a model that take seconds, cached in memory and on disk by fingerprint and machine.

Cheap facts are cached in memory only, by ``models/notes.py``; ``machine/cache_files.py`` defines the format on disk. A
file in the folder ``findings`` has the findings about one fingerprint. Its name changes with the machine, torch's
threads, versions and specdec's own source files, and the fingerprint includes the bits of the model's answers, so a
finding is valid as long as its file is found.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

import specdec
from specdec.machine.cache_files import Remembered, read, update
from specdec.machine.cache_folder import cache_folder
from specdec.machine.facts import key_of
from specdec.models.fingerprint import Fingerprint, fingerprint_of
from specdec.models.notes import notes_of

Finding = TypeVar("Finding")
_FOLDER = "findings"
_MOST_FILES = 256  # a few kilobytes each


class _Found(Remembered):
    """A file's findings by question, as JSON."""

    answers: dict[str, str]


def recalled(
    model: object,
    question: str,
    kind: type[Finding],
    find: Callable[[], Finding],
    is_shared: bool = False,
    keeps: Callable[[Finding], bool] = lambda _: True,
) -> Finding:
    """Return a finding about the model as it is now: from memory, from the cache folder, or from ``find``.

    Args:
        question: everything besides the model that the finding depends on, as text.
        kind: the finding's class, such as a frozen dataclass.
        find: called if the finding isn't cached; the result is cached.
        is_shared: True if other processes call ``find`` at the same time and must run the same passes: the folder isn't
            read then.
        keeps: returns False for a finding that isn't written to the folder.
    """
    notes = notes_of(model)
    with notes.lock:
        fingerprint = fingerprint_of(model)
        facts = notes.facts_in((fingerprint, torch.get_num_threads()))
        if question not in facts:
            path = None if is_shared or not fingerprint.is_known else _path(fingerprint)
            known = None if path is None else _read(path, question, kind)
            facts[question] = find() if known is None else known
            if path is not None and known is None and keeps(facts[question]):
                _keep(path, question, TypeAdapter(kind).dump_json(facts[question]).decode())
        found: Finding = facts[question]
        return found


def _path(fingerprint: Fingerprint) -> Path:
    return cache_folder() / _FOLDER / f"{key_of(fingerprint, _source_files())}.json"


@cache  # of a process, which runs them as they were when it imported them
def _source_files() -> tuple[int, int, int]:
    """Return the number, total size and last change of specdec's files, so that an edited probe runs again."""
    folders = os.walk(Path(specdec.__file__).parent)  # in half the time of pathlib, which every start would wait for
    facts = [Path(folder, name).stat() for folder, _, names in folders for name in names if name.endswith(".py")]
    return len(facts), sum(each.st_size for each in facts), max(each.st_mtime_ns for each in facts)


def _read(path: Path, question: str, kind: type[Finding]) -> Finding | None:
    found = read(path, _Found)
    if found is not None and question in found.answers:
        with suppress(ValidationError):
            return TypeAdapter(kind).validate_json(found.answers[question])
    return None


def _keep(path: Path, question: str, answer: str) -> None:
    """Add a finding to a file; if the file can't be written, the next process runs the probe again."""
    if not path.exists():
        _make_room(path.parent)
    update(path, _Found, lambda found: _Found(answers={**(found.answers if found else {}), question: answer}))


def _make_room(folder: Path) -> None:
    """Remove the oldest files, since a model in training has a new fingerprint for each generator."""
    with suppress(OSError):
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) + 1 - _MOST_FILES]:
            path.unlink(missing_ok=True)
