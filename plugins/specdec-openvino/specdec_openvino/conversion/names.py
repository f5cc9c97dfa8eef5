"""Names of conversions, derived from everything that determines a graph: equal names mean equal graphs.

A graph doesn't contain the model's weights, so they aren't part of a name. Other contents of modules are: numbers,
texts, the scaling and selection of adapters, and the code that they run.
"""

import enum
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from specdec.models.notes import Notes
from specdec_openvino.conversion.external_weights import tensors_of

_FORMAT = 8  # version of the files; another number invalidates earlier conversions
_GGUF_FORMAT = 2  # earlier conversions of GGUF files lost scaled rotations
_READ = "*.safetensors", "*.json", "openvino_model.*"  # files of a folder that determine what the model computes
_PLAIN = bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size, range
# A module's attributes that are described elsewhere, and transformers' mark that hidden states were requested.
_APART = {"_parameters", "_buffers", "_modules", "_output_capturing_hooks_installed"}
_VERSIONED = "torch", "transformers", "peft"  # their versions are part of a name, instead of their code
_CAPTURING = (
    "transformers.utils.output_capturing"  # its hooks, which stay after hidden states were requested, only read
)
_MOST_DEPTH = 12


class UnnameableError(Exception):
    """Raised if part of a model can't be described, such as a closure."""


def name_of_model(model: PreTrainedModel, device: str) -> str:
    """Return the name of a model's conversion for a device, as it computes now; "" if part of it can't be described."""
    named = _Digest(device)
    try:
        for path, module in model.named_modules(remove_duplicate=False):
            named.add(path, *_code_of(type(module)))
            named.add(*_Description().of_attributes(vars(module)))
    except UnnameableError:
        return ""
    for path, tensor in tensors_of(model).items():
        named.add(path, tensor.dtype, tuple(tensor.shape), tensor.is_contiguous())
    return named.hex()


def name_of_folder(folder: Path, device: str, is_export: bool = False) -> str:
    """Return the name of a folder's conversion for a device, from its files, without reading the weights.

    For a snapshot in the hub's cache, the folder's name is used: it is the commit, and files are fetched as needed.

    Args:
        is_export: True if an export is converted, in a folder to which its checkpoint may be fetched later.
    """
    named = _Digest(device)
    named.add(folder.resolve(), *(["export"] if is_export else []))
    if folder.parent.name != "snapshots":
        for file in sorted(file for pattern in _READ for file in folder.glob(pattern)):
            named.add_file(file)
    return named.hex()


def name_of_file(file: Path, dtype: str, device: str) -> str:
    """Return the name of the conversion of a GGUF file in a dtype for a device, without reading the file."""
    named = _Digest(device)
    named.add(file.resolve(), dtype, _GGUF_FORMAT, *_version_of("gguf"))
    named.add_file(file.resolve())
    return named.hex()


class _Digest:
    def __init__(self, device: str) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.add(_FORMAT, device, *(version(package) for package in ("openvino", "transformers", "torch")))
        self.add(version("specdec-openvino"), *_version_of("peft"))

    def add(self, *parts: object) -> None:
        for part in parts:
            text = str(part).encode()
            self._digest.update(len(text).to_bytes(8, "little") + text)

    def add_file(self, file: Path) -> None:
        """Add a file's state; a replaced or modified file has another inode or modification time."""
        facts = file.stat()
        self.add(file.name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)

    def hex(self) -> str:
        return self._digest.hexdigest()


def _version_of(package: str) -> Iterator[str]:
    try:
        yield version(package)
    except ModuleNotFoundError:
        return


class _Description:
    """Describes values by their contents, as texts; each object once."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}

    def of_attributes(self, attributes: Mapping[str, Any]) -> Iterator[str]:
        """Yield the description of an object's attributes."""
        for name, value in attributes.items():
            if name == "_forward_hooks":
                yield from self.of([hook for hook in value.values() if hook.__module__ != _CAPTURING])
            elif name not in _APART and not isinstance(value, torch.Tensor | GenerationConfig | Notes):
                yield name
                yield from self.of(value)

    def of(self, value: Any, depth: int = 0) -> Iterator[str]:
        """Yield the description of a value; UnnameableError if it can't be described."""
        if depth > _MOST_DEPTH:
            raise UnnameableError
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if isinstance(value, type | ModuleType):
            yield f"{getattr(value, '__module__', '')} {value.__name__}"
            return
        if id(value) in self._met:
            yield f"again {self._met[id(value)]}"
            return
        self._met[id(value)] = len(self._met)
        yield f"{type(value).__module__} {type(value).__qualname__}"
        for part in _parts(value):
            yield from self.of(part, depth + 1)


def _parts(value: Any) -> Iterable[Any]:
    """Return the parts of a value."""
    if isinstance(value, PreTrainedConfig):
        return [value.to_json_string(use_diff=False)]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, torch.Tensor):  # for example in a list, where its numbers aren't compared
        raise UnnameableError
    if isinstance(value, torch.nn.Module):  # outside of the module tree
        return [*_code_of(type(value)), *_plain_attributes(value)]
    return _parts_of_code(value) if callable(value) else _parts_by_pickling(value)


def _parts_of_code(value: Any) -> Iterable[Any]:
    if isinstance(value, BuiltinFunctionType):
        return [value.__module__, value.__qualname__]
    if isinstance(value, FunctionType):
        if value.__closure__ or not _is_versioned(value.__module__):
            raise UnnameableError
        return [value.__module__, *_code(value)]
    if isinstance(value, MethodType):
        return [value.__func__, *([] if isinstance(value.__self__, torch.nn.Module) else [value.__self__])]
    return _parts_by_pickling(value)


def _parts_by_pickling(value: Any) -> Iterable[Any]:
    """Return the parts of which a copy of an object would be made."""
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # an error of any kind
        raise UnnameableError from None
    return (
        [reduced]
        if isinstance(reduced, str)
        else [list(part) if isinstance(part, Iterator) else part for part in reduced]
    )


def _plain_attributes(module: torch.nn.Module) -> Iterator[Any]:
    if any(True for _ in (*module.parameters(), *module.buffers())):
        raise UnnameableError
    for name, value in vars(module).items():
        if name not in _APART:
            yield from (name, value)


@cache
def _code_of(cls: type) -> tuple[str, ...]:
    """Return the description of a module's class and of its forward's code.

    Raises:
        UnnameableError: for a user's own class, whose code may read any global.
    """
    forward = inspect.unwrap(cls.forward)  # type: ignore[attr-defined]
    if not _is_versioned(cls.__module__) or not _is_versioned(forward.__module__):
        raise UnnameableError
    return cls.__module__, cls.__qualname__, forward.__module__, *_code(forward)


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _code(function: Any) -> list[str]:
    code = getattr(function, "__code__", None)
    if code is None:
        raise UnnameableError
    return [function.__qualname__, *_instructions(code)]


def _instructions(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), repr(code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:  # a set's order differs between processes
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
