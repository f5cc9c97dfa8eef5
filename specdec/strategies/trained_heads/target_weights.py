"""The weights that trained heads share with their target, their checks, and notes about it."""

from pathlib import Path

import torch

from specdec.errors import ModelError
from specdec.heads.files import TargetWeights
from specdec.heads.local_heads import head_of, strategy_of
from specdec.models.altered import alterations_of
from specdec.strategies.host import Host


def head_folder(host: Host, head: Path | None, kind: str) -> Path:
    """Return the folder of a head: the given one, or the one of the head that was trained here for the target.

    Args:
        kind: the strategy that drafts with the head, which is also the kind to train.

    Raises:
        ModelError: there is neither, or the head that was trained here is of another kind or damaged.
    """
    if head is not None:
        return head.expanduser()
    folder, train = head_of(host.model), f"`specdec train head --model MODEL --kind {kind}"
    if folder is None:
        raise ModelError(f"no head was trained for this model on this machine: give head=FOLDER, or run {train}`")
    if (found := strategy_of(folder)) != kind:
        raise ModelError(
            f"the head trained for this model on this machine, {folder}, is one for {found}: use {found} or auto, or "
            f"train another with {train} --out FOLDER` and give head=FOLDER"
        )
    return folder


def shared_weights(host: Host, reader: str) -> TargetWeights:
    """Return the weights that a head shares with its target.

    Args:
        reader: the subject and verb of the error, such as "the head in FOLDER reads".

    Raises:
        ModelError: the target's layers are unknown.
    """
    if host.num_layers is None:
        raise ModelError(
            f"{reader} hidden states, and the target's layers are unknown here: use another strategy, or a "
            "transformers or OpenVINO model"
        )
    embeddings = host.embeddings()
    return TargetWeights(embeddings, lambda: host.output_rows(range(len(embeddings))), host.num_layers)


def check_ids(target_ids: torch.Tensor, host: Host, drafter: str, remedy: str) -> None:
    """Refuse a head that drafts ids beyond the target's vocabulary.

    Args:
        target_ids: (draft vocab,) the target's id of each draft id.
        drafter: the subject and verb of the error, such as "the head in FOLDER drafts".
        remedy: of the error.

    Raises:
        ModelError: an id is beyond it.
    """
    if int(target_ids.max()) >= host.vocab_size:
        raise ModelError(f"{drafter} ids beyond the target's vocabulary of {host.vocab_size}: {remedy}")


def notes_on_target(model: object) -> tuple[str, ...]:
    """Return the note on a target whose hidden states are altered, if they are."""
    alterations = alterations_of(model)
    if not alterations:
        return ()
    return (
        f"the model has {' and '.join(alterations)}: a head that was trained for the model without is accepted less "
        "often",
    )
