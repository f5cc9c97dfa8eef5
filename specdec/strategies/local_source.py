"""A strategy that was prepared on this machine for one model, such as a head that was trained for it."""

from dataclasses import dataclass

from specdec.strategies.base import Proposer


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A strategy that was prepared for one model; ``auto`` drafts with it.

    Attributes:
        name: in notes on what wasn't used, as in "drafted without a trained head".
        description: in notes on what was, as in "drafted with the head trained for this model on 2026-11-27: FOLDER".
    """

    proposer: Proposer
    name: str
    description: str
