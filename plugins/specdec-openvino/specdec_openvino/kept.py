"""Conversions, kept in the user's cache folder: by weights, configuration and versions."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import openvino as ov
import torch
from transformers import PreTrainedModel

from specdec import ModelError
from specdec.weights.tensor import PackedWeight
from specdec_openvino.attention import LayerShape
from specdec_openvino.conversion import Converted
from specdec_openvino.widening import mark_decompressions

_GRAPH, _WEIGHTS, _FACTS = "model.xml", "model.bin", "facts.json"
_FORMAT = 7  # of what is kept; another number makes earlier conversions unknown
_ABANDONED = 24 * 3600  # seconds after which what an interrupted process has left is removed
_READ = "*.safetensors", "*.json"  # the files of a checkpoint that say what the model computes


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversion in a folder of its own.

    Attributes:
        layers: the attention layers, in the order of the graph's caches.
        dtype: the model's.
        proven_on: devices on which its logits were held against the model's own forward.
        source: the checkpoint that it was read from, "" for a model that was given as an object.
    """

    folder: Path
    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    proven_on: tuple[str, ...] = ()
    source: str = ""

    @property
    def graph(self) -> Path:
        """The file of the graph; its weights lie beside it."""
        return self.folder / _GRAPH

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """The conversion in a folder, None where there is none or it isn't whole."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            facts = json.loads((folder / _FACTS).read_text())
            if facts["bytes"] == _sizes(folder):
                layers = tuple(LayerShape(**layer) for layer in facts["layers"])
                dtype = getattr(torch, facts["dtype"])
                return cls(folder, layers, dtype, tuple(facts["proven_on"]), facts["source"])
        return None

    @classmethod
    def save(cls, converted: Converted, folder: Path, dtype: torch.dtype, source: str) -> Self:
        """Keep a conversion; one that is interrupted leaves nothing that is found later.

        Raises:
            ModelError: where it can't be written.
        """
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(folder.parent)
            beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        except OSError as error:
            raise _unwritable(folder, error) from None
        made = cls(beside, converted.layers, dtype, source=source)
        try:
            ov.save_model(converted.graph, made.graph, compress_to_fp16=False)
            mark_decompressions(made.graph)
            made._write_facts()
            if cls.find(folder) is None:  # else another process was quicker
                shutil.rmtree(folder, ignore_errors=True)  # a damaged one
                beside.rename(folder)
        except (OSError, RuntimeError) as error:  # OpenVINO's is a RuntimeError, for a full disk
            if cls.find(folder) is None:
                raise _unwritable(folder, error) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return replace(made, folder=folder)

    def proven(self, device: str) -> Self:
        """The same, marked as held against the model on a device; earlier ones of the same checkpoint are removed."""
        made = replace(self, proven_on=(*self.proven_on, device))
        with suppress(OSError):  # a folder that can't be written to any more: it is proven again next time
            made._write_facts()
            for other in self.folder.parent.iterdir() if self.source else ():
                kept = None if other == self.folder else Kept.find(other)
                if kept is not None and kept.source == self.source:
                    shutil.rmtree(other, ignore_errors=True)
        return made

    def _write_facts(self) -> None:
        facts: dict[str, Any] = {
            "layers": [asdict(layer) for layer in self.layers],
            "dtype": str(self.dtype).removeprefix("torch."),
            "proven_on": self.proven_on,
            "source": self.source,
            "bytes": _sizes(self.folder),
        }
        beside = self.folder / f"{_FACTS}.new"
        beside.write_text(json.dumps(facts))
        os.replace(beside, self.folder / _FACTS)


def name_of_model(model: PreTrainedModel) -> str:
    """A name for a model's conversion: of its class, configuration and weights, and of what converts it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (*_versions(), type(model).__name__, model.config.to_json_string(use_diff=False)):
        digest.update(part.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        dense = tensor.unpacked() if isinstance(tensor, PackedWeight) else tensor.detach()
        digest.update(dense.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def name_of_folder(folder: Path) -> str:
    """A name for the conversion of a checkpoint: of its files, and of what converts it; its weights aren't read.

    Of a snapshot in a hub's cache the folder is enough: it is named after the commit, and files come as they are asked
    for.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (*_versions(), str(folder.resolve())):
        digest.update(part.encode())
    if folder.parent.name != "snapshots":
        for file in sorted(file for pattern in _READ for file in folder.glob(pattern)):
            facts = file.stat()  # a file that was replaced, or written to, has another number or time of change
            digest.update(
                f"{file.name} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}".encode()
            )
    return digest.hexdigest()


def _versions() -> Iterator[str]:
    yield str(_FORMAT)
    for package in ("openvino", "transformers", "torch", "specdec-openvino"):
        yield f"{package} {version(package)}"


def _sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size for name in (_GRAPH, _WEIGHTS)]


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(".*-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def _unwritable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"the converted model can't be kept in {folder.parent}: {error}; make room there, or point XDG_CACHE_HOME "
        "to another folder"
    )
