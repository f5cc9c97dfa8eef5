"""PEFT's adapters by name: PEFT adds them to their base model, as it does for a model that is loaded already."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.errors import ModelError, in_one_line
from specdec.models.checkpoint_files import ADAPTER_CONFIG, CONFIG, model_file
from specdec.models.hub import HubAnswer


def base_of(name: str, hub: HubAnswer) -> str | None:
    """Return the name of an adapter's base model; None for a model, even one with an adapter in its folder.

    Raises:
        ModelError: PEFT isn't installed, or the adapter names no base model.
    """
    is_here = Path(name).is_dir() or hub.is_offline
    has_config, has_model = (
        model_file(name, file, hub.is_offline) is not None if is_here else file in hub.files
        for file in (ADAPTER_CONFIG, CONFIG)
    )
    if not has_config:
        return None
    if find_spec("peft") is None:  # without it, transformers leaves out an adapter in a model's folder
        raise ModelError(f"can't load {name!r}: it is an adapter, which needs peft: pip install peft")
    if has_model:
        return None
    try:
        file = model_file(name, ADAPTER_CONFIG, hub.is_offline)
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"] if file else ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"can't load {name!r}: its {ADAPTER_CONFIG} is damaged ({in_one_line(error)})") from error
    if not base or not isinstance(base, str):
        raise ModelError(
            f"can't load {name!r}: its {ADAPTER_CONFIG} names no base model: write its folder or hub name there, as "
            "base_model_name_or_path"
        )
    return base


def with_adapter(base: Any, name: str, hub: HubAnswer) -> Any:
    """Return a base model with an adapter in its layers, and with as many embeddings as the adapter has.

    Raises:
        ModelError: PEFT can't add the adapter, tensors of it are missing or left over, or the adapter isn't in the
            layers alone.
    """
    from peft import PeftModel, load_peft_weights

    from specdec.models.unwrapping import unwrapped  # imports torch, which finding a base model doesn't need

    where = {"local_files_only": hub.is_offline}
    fits = f"was it trained for {type(base).__name__} of {base.config.name_or_path!r}? Write its base model into its"
    remedy = f"{fits} {ADAPTER_CONFIG}, or give a model with the adapter merged into it"
    try:
        tensors = load_peft_weights(name, device="cpu", **where)
        rows = _rows_of(tensors, base)
        if (most := max(rows.values())) not in {0, len(base.get_input_embeddings().weight)}:
            base.resize_token_embeddings(most, mean_resizing=False)
            if lacking := [place for place, number in rows.items() if number != most]:
                raise ValueError(f"it has {most} tokens, and no rows of {lacking[0]} for those that it adds")
        adapted = PeftModel.from_pretrained(base, name, **where)
        report = adapted.load_adapter(name, "default", **where)  # again, for the report
    except Exception as error:  # a library's code, and damaged files
        raise ModelError(f"can't load the adapter {name!r} ({in_one_line(error)}): {remedy}") from error
    model = unwrapped(adapted.eval())
    # Embeddings that were trained and resized are saved twice.
    left_over = [
        key for key in report.unexpected_keys if key.replace(".modules_to_save", "", 1) not in tensors.keys() - {key}
    ]
    if wrong := [*report.missing_keys, *left_over]:
        named = f"{len(wrong)} tensors are missing or left over, such as {wrong[0]}"
        raise ModelError(f"can't load the adapter {name!r} ({named}): {remedy}")
    return model


def _rows_of(tensors: dict[str, Any], base: Any) -> dict[str, int]:
    """Return the numbers of tokens in an adapter's embeddings and, unless it is tied to them, its output matrix."""
    ends = {id(each.weight): each for each in (base.get_output_embeddings(), base.get_input_embeddings())}
    rows = {name: 0 for name, module in base.named_modules() if module in ends.values()}
    for name, tensor in tensors.items():
        place = next((place for place in rows if name.startswith(f"base_model.model.{place}.")), None)
        if place and name.endswith("lora_embedding_A"):
            rows[place] = tensor.shape[1]
        elif place and name.endswith(".weight") and ".lora_" not in name:
            rows[place] = tensor.shape[0]
    return rows
