"""Trained heads as a plug-in, registered by specdec's own entry point: the core knows none of them by name."""

from collections.abc import Mapping, Sequence
from datetime import date

from specdec.heads.head_facts import facts_of
from specdec.heads.local_heads import head_of
from specdec.plugins.hookspecs import hookimpl
from specdec.strategies.base import LocalSource


@hookimpl
def specdec_proposers() -> Mapping[str, str]:
    return {
        "dflash": "specdec.heads.strategies.block:DFlashProposer",
        "dspark": "specdec.heads.strategies.block:DSparkProposer",
        "eagle": "specdec.heads.strategies.eagle:EagleProposer",
        "eagle3": "specdec.heads.strategies.eagle3:Eagle3Proposer",
        "medusa": "specdec.heads.strategies.medusa:MedusaProposer",
        "mtp": "specdec.heads.strategies.mtp:MtpProposer",
        "p_eagle": "specdec.heads.strategies.p_eagle:PEagleProposer",
    }


@hookimpl
def specdec_local_sources(model: object) -> Sequence[LocalSource]:
    """Return the head that `specdec train head` made for this very model, if it was measured to be faster here."""
    folder = head_of(model)
    facts = None if folder is None else facts_of(folder)
    if folder is None or facts is None or facts.speeds is None or not facts.speeds.is_faster:
        return []
    from specdec.heads.strategies.eagle3 import Eagle3Proposer

    trained = date.fromtimestamp((folder / "config.json").stat().st_mtime)
    described = f"the head trained for this model on {trained}: {folder}"
    return [LocalSource(Eagle3Proposer(head=folder), "a trained head", described)]
