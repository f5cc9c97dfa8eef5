"""The files of a head's folder: its configuration and tensors; nothing in a file is executed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specdec.errors import ModelError

# Files of tensors, by pattern; those of the first pattern that has any are read.
FILES = "*.safetensors", "pytorch_model*.bin"


def read_config(folder: Path, remedy: str) -> dict[str, Any]:
    """Return the settings of a folder's ``config.json``.

    Raises:
        ModelError: it can't be read; with the remedy.
    """
    try:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable config.json ({error}): {remedy}") from error
    return settings


def read_tensors(folder: Path, patterns: Sequence[str], remedy: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder's files, on the CPU.

    Args:
        folder: the head's.
        patterns: of files, as safetensors or as pickles of plain tensors; those of the first pattern that has any are
            read.
        remedy: of the errors.

    Raises:
        ModelError: there are none, or they hold something else than tensors.
    """
    files = next((found for pattern in patterns if (found := sorted(folder.glob(pattern)))), [])
    if not files:
        raise ModelError(f"{folder} has neither model.safetensors nor {patterns[-1].replace('*', '')}: {remedy}")
    tensors = dict[str, torch.Tensor]()
    for file in files:
        try:
            loaded = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
        except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
            raise ModelError(
                f"{file} is damaged or no file of tensors ({error}): copy the head's folder again"
            ) from error
        except Exception as error:  # whatever a malicious pickle brings up
            raise ModelError(f"{file} holds something other than tensors ({error}): {remedy}") from error
        if not isinstance(loaded, dict) or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
        ):
            raise ModelError(f"{file} holds something other than tensors: {remedy}")
        tensors |= loaded
    return tensors
