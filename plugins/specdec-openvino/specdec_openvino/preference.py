"""Decides which models given by name are run by OpenVINO by default."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from specdec import ModelError
from specdec.models import ModelSource, is_gguf, model_file
from specdec.models.checkpoint_files import ADAPTER_CONFIG, CONFIG, NO_CONFIG
from specdec_openvino.options import check_dtype
from specdec_openvino.sources.hub import is_name_of_export


def why_not(source: ModelSource, device: str) -> str:
    """Return why torch should drive a model rather than OpenVINO on a device, or "".

    Whether the model can be converted is found out only by a conversion.
    """
    if reason := _why_not_on(source.device or "cpu"):  # found without a request to the hub
        return reason
    if is_name_of_export(source):  # which torch can't load onto a GPU
        return _why_not_in(source.dtype, device)
    return _why_not_on(source.torch_device) or _why_not_checkpoint(source, device)


def _why_not_checkpoint(source: ModelSource, device: str) -> str:
    if is_gguf(source.name):
        return _why_not_in(source.dtype, device)
    is_offline = source.hub_answer().is_offline
    if model_file(source.name, ADAPTER_CONFIG, is_offline) is not None:
        return "the folder holds an adapter of another model"
    file = model_file(source.name, CONFIG, is_offline)
    if file is None:
        return NO_CONFIG
    config = _config(file)
    if not config:
        return f"{CONFIG} is empty or invalid"
    if config.get("is_encoder_decoder") or "quantization_config" in config:
        is_quantised = "quantization_config" in config
        return (
            "the checkpoint is quantised, and its layers compute in their own way"
            if is_quantised
            else "it has an encoder"
        )
    return _why_not_in(
        source.dtype if source.dtype != "auto" else config.get("dtype", config.get("torch_dtype")), device
    )


def _why_not_on(place: str) -> str:
    return "" if torch.device(place).type == "cpu" else f"the model is to be on {place}"


def _why_not_in(dtype: object, device: str) -> str:
    """Return why a device doesn't support a dtype, given by its name in configurations, or ""."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    try:
        if isinstance(found, torch.dtype):
            check_dtype(found, device)
    except ModelError as error:
        return str(error)
    return ""


def _config(file: Path) -> dict[str, Any]:
    """Return a model's configuration; {} if it can't be read."""
    with suppress(OSError, ValueError):
        if isinstance(config := json.loads(file.read_text(encoding="utf-8")), dict):
            return config
    return {}
