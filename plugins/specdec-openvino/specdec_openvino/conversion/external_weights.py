"""Weights outside of a graph: a conversion reads the model's own, from memory or from a checkpoint's files.

Weights are flat arrays of bytes, by name; the graph's inputs have their shapes and types.
"""

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops

from specdec.models.weights import PackedWeight

PREFIX = "weight."  # of the names of inputs that represent weights
LEAST_OWN = 4096  # bytes of a constant that isn't stored in the graph's file
_PROBE = 4096  # bytes to compare first
_HEADER_SIZE = 8  # bytes of the header size in a safetensors file
_BYTES_OF = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a tensor in a file."""

    file: str
    offset: int
    size: int


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every tensor of a model's modules: parameters, buffers and plain attributes."""
    found: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in (*module._parameters.items(), *module._buffers.items(), *vars(module).items()):
            if isinstance(value, torch.Tensor):
                found[f"{path}.{name}"] = value
    return found


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return a model's tensors as bytes: its own memory, or copies of tensors that are packed or not contiguous."""
    return {name: bytes_of(tensor) for name, tensor in tensors_of(model).items()}


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's numbers as flat bytes: its own memory if it is contiguous, else a copy."""
    dense = tensor.unpacked() if isinstance(tensor, PackedWeight) else tensor.detach()
    flat: np.ndarray = dense.contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


class Checkpoint:
    """The safetensors files of a folder, mapped into memory.

    Pages that were read count as this process's memory until ``let_go`` releases them.
    """

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self._maps: dict[str, mmap.mmap] = {}
        for name in files:
            with (folder / name).open("rb") as file:
                self._maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Map all files of a folder."""
        return cls(folder, [file.name for file in sorted(folder.glob("*.safetensors"))])

    def read(self, places: Mapping[str, Place]) -> dict[str, np.ndarray]:
        """Return the weights at some places.

        Raises:
            ValueError: for places outside of the files.
        """
        return {name: self._at(place) for name, place in places.items()}

    def places_of(self, weights: Weights) -> dict[str, Place]:
        """Return the places with exactly the bytes of some weights; of several, the one with the same name."""
        by_size: dict[int, list[tuple[str, Place]]] = {}
        for name, place in self._tensors():
            by_size.setdefault(place.size, []).append((name, place))
        found = {}
        for name, wanted in weights.items():
            candidates = by_size.get(wanted.nbytes, []) if wanted.nbytes else []
            for _, place in sorted(candidates, key=lambda candidate, name=name: not name.endswith(candidate[0])):
                held = self._at(place)
                if np.array_equal(held[:_PROBE], wanted[:_PROBE]) and np.array_equal(held, wanted):
                    found[name] = place
                    break
        return found

    def file(self, name: str) -> np.ndarray:
        """Return the bytes of a file."""
        return np.frombuffer(self._maps[name], np.uint8)

    def let_go(self) -> None:
        """Release pages to the system, which still caches them if they are read again."""
        for mapped in self._maps.values():
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def _tensors(self) -> Iterator[tuple[str, Place]]:
        for file, mapped in self._maps.items():
            size = int.from_bytes(mapped[:_HEADER_SIZE], "little")
            header: dict[str, Any] = json.loads(mapped[_HEADER_SIZE : _HEADER_SIZE + size])
            for name, facts in header.items():
                if facts.get("dtype") in _BYTES_OF:
                    begin, end = facts["data_offsets"]
                    yield name, Place(file, _HEADER_SIZE + size + begin, end - begin)

    def _at(self, place: Place) -> np.ndarray:
        return np.frombuffer(self._maps[place.file], np.uint8, place.size, place.offset)


def extract_constants(graph: ov.Model, weights: Weights) -> tuple[set[str], dict[str, np.ndarray]]:
    """Turn constants of a graph into inputs: those in the memory of some weights, and all large ones.

    Returns:
        The names of the weights found, and the other large constants by new names.
    """
    by_address = {weight.ctypes.data: name for name, weight in reversed(weights.items()) if weight.nbytes}
    own: dict[str, np.ndarray] = {}
    inputs: dict[str, Any] = {}
    for constant in [node for node in graph.get_ordered_ops() if node.get_type_name() == "Constant"]:
        data = constant.data
        name = by_address.get(data.ctypes.data)
        if name is None or weights[name].nbytes != data.nbytes:
            if data.nbytes < LEAST_OWN:
                continue
            name = f"constant.{len(own)}"
            own[name] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if name not in inputs:
            shape, kind = constant.get_output_shape(0), constant.get_element_type()
            inputs[name] = ops.parameter(shape, kind, name=PREFIX + name)
        constant.output(0).replace(inputs[name].output(0))
    graph.add_parameters(list(inputs.values()))
    return inputs.keys() - own.keys(), own


def insert_constants(graph: ov.Model, weights: Weights) -> None:
    """Turn these inputs back into constants in the weights' own memory, which must exist as long as the graph."""
    for parameter in graph.get_parameters():
        name = parameter.get_friendly_name()
        if name.startswith(PREFIX):
            kind, shape = parameter.get_element_type(), parameter.get_output_shape(0)
            constant = ov.op.Constant(ov.Tensor(weights[name.removeprefix(PREFIX)], shape, kind))
            constant.set_friendly_name(name)
            parameter.output(0).replace(constant.output(0))
            graph.remove_parameter(parameter)
