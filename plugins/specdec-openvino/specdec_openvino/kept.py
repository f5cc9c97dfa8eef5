"""Conversions, kept in the user's cache folder: by weights, configuration and versions."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

import openvino as ov
import torch
from transformers import PreTrainedModel

from specdec import ModelError
from specdec.weights.tensor import PackedWeight
from specdec_openvino.attention import LayerShape
from specdec_openvino.conversion import Converted

_GRAPH, _FACTS = "model.xml", "facts.json"
_FORMAT = 4  # of what is kept; another number makes earlier conversions unknown


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversion in a folder of its own. ``is_proven``: its logits were held against the model's own."""

    folder: Path
    layers: tuple[LayerShape, ...]
    is_proven: bool

    @property
    def graph(self) -> Path:
        """The file of the graph; its weights lie beside it."""
        return self.folder / _GRAPH

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """The conversion in a folder, None where there is none or it can't be read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads((folder / _FACTS).read_text())
            if (folder / _GRAPH).is_file():
                return cls(folder, tuple(LayerShape(**layer) for layer in facts["layers"]), facts["is_proven"])
        return None

    @classmethod
    def save(cls, converted: Converted, folder: Path) -> Self:
        """Keep a conversion; one that is interrupted leaves nothing that is found later.

        Raises:
            ModelError: where it can't be written.
        """
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        except OSError as error:
            raise _unwritable(folder, error) from None
        made = cls(beside, converted.layers, is_proven=False)
        try:
            ov.save_model(converted.graph, made.graph, compress_to_fp16=False)
            made._write_facts()
            if folder.exists():  # damaged, or of two processes the other's
                shutil.rmtree(folder)
            beside.rename(folder)
        except OSError as error:
            raise _unwritable(folder, error) from None
        except RuntimeError as error:  # OpenVINO's, for a full disk
            raise _unwritable(folder, error) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return cls(folder, converted.layers, is_proven=False)

    def proven(self) -> Self:
        """The same, marked as held against the model."""
        made = type(self)(self.folder, self.layers, is_proven=True)
        made._write_facts()
        return made

    def _write_facts(self) -> None:
        facts = {"layers": [asdict(layer) for layer in self.layers], "is_proven": self.is_proven}
        beside = self.folder / f"{_FACTS}.new"
        beside.write_text(json.dumps(facts))
        os.replace(beside, self.folder / _FACTS)


def name_of_model(model: PreTrainedModel) -> str:
    """A name for a model's conversion: of its class, configuration and weights, and of what converts it."""
    told = hashlib.blake2b(digest_size=16)
    for part in _versions():
        told.update(part.encode())
    told.update(type(model).__name__.encode())
    told.update(model.config.to_json_string(use_diff=False).encode())
    for name, tensor in model.state_dict().items():
        told.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        dense = tensor.unpacked() if isinstance(tensor, PackedWeight) else tensor.detach()
        told.update(dense.contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return told.hexdigest()


def name_of_folder(folder: Path, dtype: str) -> str:
    """A name for the conversion of a checkpoint: of its files, and of what converts it; its weights aren't read."""
    told = hashlib.blake2b(digest_size=16)
    for part in (*_versions(), dtype, str(folder.resolve())):
        told.update(part.encode())
    for file in sorted(folder.iterdir()):
        facts = file.stat()
        told.update(f"{file.name} {facts.st_size} {facts.st_mtime_ns}".encode())
    return told.hexdigest()


def _versions() -> Iterator[str]:
    yield str(_FORMAT)
    for package in ("openvino", "transformers", "torch", "specdec-openvino"):
        yield f"{package} {version(package)}"


def _unwritable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"the converted model can't be kept in {folder.parent}: {error}; make room there, or point XDG_CACHE_HOME "
        "to another folder"
    )
