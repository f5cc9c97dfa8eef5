"""What is known of a head that was trained on this machine: what it learnt from, and how fast it is here."""

from pathlib import Path

from specdec.machine.cache_files import Remembered, read, update, write

_FILE = "facts.json"


class Speeds(Remembered):
    """Speeds measured on this machine, as multiples of plain decoding's: of ``auto`` without and with the head."""

    without: float
    with_head: float
    alone: float

    @property
    def is_faster(self) -> bool:
        """True if ``auto`` is faster with the head than without."""
        return self.with_head > self.without


class HeadFacts(Remembered):
    """Facts about a trained head.

    Attributes:
        model: its target, as it was named.
        num_answer_tokens: of the text that it was trained on.
        tokens_per_step: of a chain, on held-out text.
        speeds: None before they are measured.
    """

    model: str
    num_answer_tokens: int
    tokens_per_step: float
    speeds: Speeds | None = None


def facts_of(folder: Path) -> HeadFacts | None:
    """Return what is known of the head in a folder; None for one that wasn't trained by ``specdec train head``."""
    return read(folder / _FILE, HeadFacts)


def write_facts(folder: Path, facts: HeadFacts) -> None:
    """Write what is known of a new head, in place of what was known of the one before."""
    write(folder / _FILE, facts)


def note_speeds(folder: Path, speeds: Speeds) -> None:
    """Note how fast a head is on this machine; ``auto`` drafts with it from now on if that is faster."""
    unknown = HeadFacts(model="unknown", num_answer_tokens=0, tokens_per_step=0.0)
    update(folder / _FILE, HeadFacts, lambda held: (held or unknown).model_copy(update={"speeds": speeds}))
