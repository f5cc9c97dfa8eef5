"""Facts about a head that was trained on this machine: its text, and its speeds in each setup."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.machine.cache_files import Remembered, read, update, write
from specdec.machine.facts import model_facts, processor_name

_FILE = "facts.json"


class Speeds(Remembered):
    """Measured speeds, as multiples of plain decoding's: of ``auto`` without and with the head, and of the head alone.

    Attributes:
        is_faster: ``auto`` is certainly faster with the head, by the interval over prompts.
    """

    without: float
    with_head: float
    alone: float
    is_faster: bool


class HeadFacts(Remembered):
    """Facts about a trained head.

    Attributes:
        model: its target, as it was named; "" if unknown.
        num_answer_tokens: of the text that it was trained on; 0 if unknown.
        tokens_per_step: of a chain, on held-out text; 0 if unknown.
        speeds: by ``setup_of``; what isn't there wasn't measured.
    """

    model: str = ""
    num_answer_tokens: int = 0
    tokens_per_step: float = 0.0
    speeds: Mapping[str, Speeds] = {}


def setup_of(model: Any, engine: str) -> str:
    """Return in words what speeds depend on: the backend ``engine``, the precision and the machine."""
    facts = model_facts(model)
    device = facts.get("accelerator") or f"{processor_name()}, {os.cpu_count()} cores"
    return f"{engine} in {facts.get('dtype', 'its precision').partition(' ')[0]} on {device}"


def facts_of(folder: Path) -> HeadFacts:
    """Return what is known of the head in a folder."""
    return read(folder / _FILE, HeadFacts) or HeadFacts()


def write_facts(folder: Path, facts: HeadFacts) -> None:
    """Write what is known of a new head, in place of what was known of the one before."""
    write(folder / _FILE, facts)


def note_speeds(folder: Path, model: str, setup: str, speeds: Speeds) -> None:
    """Note how fast a head is; in this setup ``auto`` drafts with it from now on if that is faster.

    Args:
        folder: the head's.
        model: the name of its target, for facts without one.
        setup: from ``setup_of``.
        speeds: measured there.
    """

    def noted(held: HeadFacts | None) -> HeadFacts:
        facts = held or HeadFacts()
        return facts.model_copy(update={"model": facts.model or model, "speeds": {**facts.speeds, setup: speeds}})

    update(folder / _FILE, HeadFacts, noted)
