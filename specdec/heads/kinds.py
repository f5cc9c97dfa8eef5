"""The strategy that reads a head's folder, by its configuration and tensors; another one refuses it by that name."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specdec.errors import ModelError

MASK_TOKENS = "mask_token_id", "pard_token", "ptd_token_id"  # P-EAGLE's, by ``speculators``, SpecForge and AWS
# The strategies that read ``speculators``' kinds.
_SPECULATORS = {
    "eagle": "eagle", "eagle3": "eagle3", "peagle": "p_eagle", "dflash": "dflash", "dspark": "dspark",
}  # fmt: skip
# Words of architectures, types of models and some keys, with the strategy, or the name of a kind that none reads.
_WORDS = {
    "hydra": "Hydra", "domino": "Domino", "mtp": "MTP", "nextn": "MTP", "medusa": "medusa", "dflash2": "DFlash2",
    "gemma4dspark": "Gemma 4 DSpark", "dspark": "dspark", "dflash": "dflash", "peagle": "p_eagle",
}  # fmt: skip
_KEYS = {"hydra_num_heads", "medusa_num_heads", "dflash_config"}
_STRATEGIES = {*_SPECULATORS.values(), "medusa"}


def kind_of(settings: Mapping[str, Any], names: Collection[str] = ()) -> str:
    """Return the strategy that reads a head, or the name of a kind that none reads; "" if it is unknown.

    Args:
        settings: of its ``config.json``.
        names: of its tensors, if they are known.
    """
    if kind := settings.get("speculators_model_type"):
        found = _SPECULATORS.get(kind, "MTP" if kind == "mtp" else str(kind))
    else:
        named = *(settings.get("architectures") or ()), settings.get("model_type"), *(_KEYS & settings.keys())
        said = " ".join(map(str, named))
        found = next((found for word, found in _WORDS.items() if word in said.lower()), "")
    if found in {"dflash", "dspark"}:
        return "dspark" if settings.get("markov_rank") else "dflash"
    return found or _kind_of_tensors(settings, names)


def _kind_of_tensors(settings: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the strategy by tensors: EAGLE's first heads have no norm before attention, and Medusa's no ``fc``."""
    if any(name.endswith(".linear.weight") or "blocks." in name for name in names):
        return "medusa"
    if not all(any(name.endswith(end) for name in names) for end in ("fc.weight", "self_attn.q_proj.weight")):
        return ""
    if any(name.endswith("mask_hidden") for name in names):
        return "p_eagle"
    if any(name.endswith("hidden_norm.weight") for name in names):
        return "eagle3"
    return "" if any(name.endswith("input_layernorm.weight") for name in names) else "eagle"


def check_kind(
    folder: Path, settings: Mapping[str, Any], remedy: str, strategies: Collection[str], names: Collection[str] = ()
) -> None:
    """Refuse a head of another kind.

    Args:
        folder: the head's.
        settings, names: as for ``kind_of``; a head of unknown kind is left to its reader.
        remedy: of the error.
        strategies: those that read what is expected.

    Raises:
        ModelError: with the strategy that reads the head, if there is one.
    """
    kind = kind_of(settings, names)
    if kind in {"", *strategies}:
        return
    found = f"{'an' if kind == 'MTP' else 'a'} {kind} head, which specdec doesn't read"
    if kind in _STRATEGIES:
        what = "a block drafter, which" if kind in {"dflash", "dspark"} else "a head that"
        found = f"{what} {kind}:head=FOLDER reads"
    raise ModelError(f"{folder} holds {found}: {remedy}")
