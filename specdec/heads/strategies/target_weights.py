"""The weights that trained heads share with their target, their checks, and notes about it."""

from functools import partial

import torch

from specdec.errors import ModelError
from specdec.heads.files import TargetWeights
from specdec.heads.logits_map import logits_map_of
from specdec.models.token_weights import embeddings_scale_of, output_bias_of
from specdec.strategies.host import Host


def alterations_of(model: object) -> list[str]:
    """Return what changes a model's hidden states: an adapter in its layers, quantised weights, or neither."""
    found = ["an adapter"] if _has_adapter(model) else []
    config = getattr(model, "config", None)
    is_quantized = getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None
    return [*found, "quantised weights"] if is_quantized else found


def _has_adapter(model: object) -> bool:
    """Return True for layers of PEFT's, which are in the model itself, however its adapter was added."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(type(module).__module__.startswith("peft.") for module in modules)


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
    output = partial(host.output_rows, range(len(embeddings)))
    return TargetWeights(
        embeddings,
        output,
        host.num_layers,
        logits_map=partial(logits_map_of, host.model),
        output_bias=partial(output_bias_of, host.model),
        embeddings_scale=partial(embeddings_scale_of, host.model),
    )


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
