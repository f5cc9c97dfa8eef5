"""Trained heads as a plug-in, registered by specdec's own entry point: the core knows none of them by name."""

from collections.abc import Mapping, Sequence
from datetime import date

from specdec.errors import ModelError
from specdec.heads.head_facts import facts_of, setup_of
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
def specdec_local_sources(model: object, engine: str) -> Sequence[LocalSource]:
    """Return the head that `specdec train head` made for this very model, if it was measured to be faster here.

    Raises:
        ModelError: it wasn't measured with this backend and in this precision.
    """
    if (folder := head_of(model)) is None:
        return []
    setup = setup_of(model, engine)
    if (speeds := facts_of(folder).speeds.get(setup)) is None:
        raise ModelError(
            f"how fast auto is with the head in {folder} isn't known for {setup}: `specdec heads measure` with the "
            "same --model, --dtype and --backend measures it"
        )
    if not speeds.is_faster:
        return []
    from specdec.heads.strategies.eagle3 import Eagle3Proposer

    trained = date.fromtimestamp((folder / "config.json").stat().st_mtime)
    described = f"the head trained for this model on {trained}: {folder}"
    return [LocalSource(Eagle3Proposer(head=folder), "a trained head", described)]
