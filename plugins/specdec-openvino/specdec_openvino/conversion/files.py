"""Files of conversions in the user's cache folder, written atomically and checked when they are read."""

import hashlib
import json
import mmap
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from specdec_openvino.conversion.attention import LayerShape
from specdec_openvino.conversion.external_weights import Place, Weights

_SUFFIX = ".conversion"
_ABANDONED = 24 * 3600  # seconds after which files left by an interrupted process are removed
_CHUNK = 4 * 2**20  # bytes that a thread digests at a time
_DIGEST_SIZE = 32
_SIZE_SIZE = 8  # bytes of the size of the facts
_ALIGNMENT = 64
_MISREAD = OSError, ValueError, KeyError, TypeError, AttributeError


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a converted model besides its graph.

    Attributes:
        layers: the attention layers, in the order of the graph's caches.
        dtype: the model's.
        source: the folder of its checkpoint, or a GGUF file with its dtype; "" for a model passed as an object.
        places: the places of a checkpoint's weights in its files.
        baked: digests of tensors that the graph doesn't read and that may be constants in it.
        tied: by tensor, another one that has the same memory.
        rounding: how its matrices were rounded; "" if they weren't.
    """

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    source: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)
    baked: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    rounding: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as data for JSON."""
        return {**asdict(self), "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Self:
        """Return the facts of data from ``to_json``."""
        made = cls(**{**known, "dtype": getattr(torch, known["dtype"])})
        layers = tuple(LayerShape(**layer) for layer in known["layers"])
        return replace(made, layers=layers, places={name: Place(**place) for name, place in known["places"].items()})

    def fit(self, weights: Weights) -> bool:
        """Return True if the graph is valid for weights with the same names."""
        return all(name in weights and digest(weights[name]) == made for name, made in self.baked.items()) and all(
            name in weights and other in weights and weights[name].ctypes.data == weights[other].ctypes.data
            for name, other in self.tied.items()
        )


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model without its weights. Only ``own`` is read from disk later, from a file that stays open.

    Attributes:
        graph, constants: OpenVINO's two files.
        own: large constants of the graph that aren't tensors of the model, or all of a rounded model.
    """

    facts: Facts
    graph: bytes
    constants: bytes
    own: Weights
    file: mmap.mmap | None = field(default=None, compare=False)

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Return the conversion in a file; None if there is none, or any byte has changed."""
        with suppress(*_MISREAD), path.open("rb") as opened:
            file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            mapped = np.frombuffer(file, np.uint8)
            if mapped[:_DIGEST_SIZE].tobytes().decode() == digest(mapped[_DIGEST_SIZE:]):
                return replace(cls._of(mapped), file=file)
        return None

    def let_go(self) -> None:
        """Release the pages of ``own`` to the system, which reads them again from the file if they are needed."""
        if self.file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.file.madvise(mmap.MADV_DONTNEED)

    @classmethod
    def _of(cls, mapped: np.ndarray) -> Self:
        header, at = _header_of(mapped)
        parts = list[np.ndarray]()
        for size in header["sizes"]:
            at += -at % _ALIGNMENT
            parts.append(mapped[at : at + size])
            at += size
        graph, constants, *own = parts
        facts = Facts.from_json(header["facts"])
        return cls(facts, graph.tobytes(), constants.tobytes(), dict(zip(header["own"], own, strict=True)))

    def save(self, path: Path) -> None:
        """Write the conversion to a file atomically: readers see the former one or this one, even after a crash.

        Warns:
            UserWarning: if the file can't be written, with the remedy.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(path.parent)
            number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        except OSError as error:
            return _warn(path, error)
        unfinished = Path(name)
        try:
            with os.fdopen(number, "w+b") as file:
                self._write(file)
                file.flush()
                os.fsync(file.fileno())  # otherwise a crash may leave a file of zeros
            os.replace(unfinished, path)
        except OSError as error:
            return _warn(path, error)
        finally:
            unfinished.unlink(missing_ok=True)

    def _write(self, file: Any) -> None:
        parts = [np.frombuffer(self.graph, np.uint8), np.frombuffer(self.constants, np.uint8), *self.own.values()]
        header = {"facts": self.facts.to_json(), "own": list(self.own), "sizes": [len(part) for part in parts]}
        text = json.dumps(header).encode()
        file.write(bytes(_DIGEST_SIZE) + len(text).to_bytes(_SIZE_SIZE, "little") + text)
        for part in parts:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(part)
        file.flush()
        with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as mapped:
            made = digest(np.frombuffer(mapped[_DIGEST_SIZE:], np.uint8))
        file.seek(0)
        file.write(made.encode())


def digest(data: np.ndarray) -> str:
    """Return a digest of all bytes, computed by a thread per processor; ``_DIGEST_SIZE`` letters."""
    flat = memoryview(data)
    chunks = [flat[begin : begin + _CHUNK] for begin in range(0, len(flat), _CHUNK)]
    if len(chunks) > 1:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(_digest, chunks))
    else:
        parts = list(map(_digest, chunks))
    return _digest(b"".join(parts)).hex()


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE // 2).digest()


def path_in(folder: Path, name: str) -> Path:
    """Return the file of a conversion by its name."""
    return folder / f"{name}{_SUFFIX}"


def remove_others(path: Path, facts: Facts, state: str) -> None:
    """Remove the conversions of a checkpoint's earlier states, and those rounded alike by another version of nncf.

    Args:
        path, facts: of the conversion that replaces them.
        state: with which the names of conversions of the checkpoint's present files begin.
    """
    for other in path.parent.glob(f"*{_SUFFIX}"):
        known = _facts_in(other)
        if other == path or known is None or known.source != facts.source:
            continue
        if not other.name.startswith(state) or known.rounding == facts.rounding:
            with suppress(OSError):
                other.unlink()


def _facts_in(path: Path) -> Facts | None:
    """Return the facts of a file's conversion, without comparing its digest, which would read all of it."""
    with (
        suppress(*_MISREAD),
        path.open("rb") as opened,
        closing(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)) as file,
    ):
        return Facts.from_json(_header_of(file)[0]["facts"])
    return None


def _header_of(file: Any) -> tuple[dict[str, Any], int]:
    """Return the header of a file's bytes, and its end."""
    begin = _DIGEST_SIZE + _SIZE_SIZE
    end = begin + int.from_bytes(bytes(file[_DIGEST_SIZE:begin]), "little")
    return json.loads(bytes(file[begin:end])), end


def _remove_abandoned(folder: Path) -> None:
    for left in folder.glob(f".*{_SUFFIX}-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def _warn(path: Path, error: OSError) -> None:
    warnings.warn(
        f"the converted model can't be saved in {path.parent}, so each start converts it again: {error}; make room "
        "there, or point XDG_CACHE_HOME to another folder",
        stacklevel=2,
    )
