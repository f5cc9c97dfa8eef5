"""GGUF files: refusals before loading, transformers' arguments, and what is wrong with a file that can't be loaded."""

import mmap
import re
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.errors import ModelError
from specdec.models.gguf_settings import GgufContents, gguf_config

_LIBRARIES = "gguf", "accelerate"  # what transformers reads such files with
_MAGIC, _VERSIONS, _HEADER_SIZE = b"GGUF", (2, 3), 24
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_AGAIN = "Download it again, or decrypt it"
# In the metadata: bytes of a number by its type, and the types of other lengths.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_FORMATS = {
    b"version https://git-lfs": "it is a Git LFS pointer, without the weights: fetch them with git lfs pull",
    b"PK\x03\x04": "it is a zip archive: unpack it, or give the file that it was made from",
    b"lmgg": "it is of llama.cpp's GGML format, before GGUF: convert it with llama.cpp",
    b"tjgg": "it is of llama.cpp's GGJT format, before GGUF: convert it with llama.cpp",
    b"<": "it is a web page: the download has failed, or needs you to log in",
}


def is_gguf(name: str) -> bool:
    """Return True for the name of a GGUF file."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def check_gguf(name: str) -> None:
    """Check a GGUF file's header, which takes no time, before the file is loaded.

    Raises:
        ModelError: if the file is missing, of another format, encrypted, or one of several parts, or if the libraries
            that read GGUF files are missing.
    """
    path = Path(name)
    if not path.is_file():
        raise ModelError(f"can't load {name!r}: there is no such file. Give the path of an existing GGUF file")
    if missing := [library for library in _LIBRARIES if find_spec(library) is None]:
        raise ModelError(
            f"can't load {name!r}: a GGUF file is read with {' and '.join(_LIBRARIES)}: pip install {' '.join(missing)}"
        )
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise ModelError(f"can't load {name!r}: {error.strerror}") from error
    if fault := _fault_in(header):
        raise ModelError(f"can't load {name!r}: {fault}")
    part = _PART.search(path.name)
    if part is not None and int(part[1]) > 1:
        raise ModelError(
            f"can't load {name!r}: it is one of {int(part[1])} parts: join them with llama.cpp's llama-gguf-split "
            "--merge, and give the file that it writes"
        )


def gguf_arguments(contents: GgufContents) -> Mapping[str, Any]:
    """Return arguments of transformers' ``from_pretrained`` that load a file's weights dequantised.

    Raises as ``gguf_config``.
    """
    import transformers

    settings = {"config": gguf_config(contents)}
    quantization = getattr(transformers, "GgufConfig", None)  # without it, transformers always dequantises
    if quantization is None:
        return settings
    return {**settings, "quantization_config": quantization(gguf_file=str(contents.path), dequantize=True)}


def forget_quantization(model: Any) -> None:
    """Make a dequantised model one like any other, which can be saved and converted."""
    for name in ("hf_quantizer", "quantization_method"):
        vars(model).pop(name, None)
    vars(model.config).pop("quantization_config", None)
    model.is_quantized = False


def with_turn_ends(tokenizer: Any, name: str) -> Any:
    """Return a model's tokenizer; that of a GGUF file with the ends of turns and messages as further attributes."""
    if is_gguf(name):
        for attribute, token in tokens_named_in(Path(name), "eot_token_id", "eom_token_id").items():
            setattr(tokenizer, attribute, token)  # as the ids that transformers reads itself
    return tokenizer


def tokens_named_in(path: Path, *names: str) -> dict[str, int]:
    """Return the tokens that a file's metadata has under ``tokenizer.ggml.NAME``, by name.

    The gguf library would take many seconds for a large vocabulary.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (num_entries,) = struct.unpack_from("<Q", data, 16)
        at, found = _HEADER_SIZE, dict[str, int]()
        for _ in range(num_entries):
            start, at = at + 8, _after(data, at, _STRING)
            name, (kind,) = data[start:at].decode().removeprefix("tokenizer.ggml."), struct.unpack_from("<I", data, at)
            start, at = at + 4, _after(data, at + 4, kind)
            if name in names:
                found[name] = int.from_bytes(data[start:at], "little")
    return found


def _after(data: mmap.mmap, at: int, kind: int) -> int:
    """Return where a value of the metadata ends."""
    if kind == _STRING:
        return at + 8 + int.from_bytes(data[at : at + 8], "little")
    if kind != _ARRAY:
        return at + _SIZES[kind]
    kind, count = map(int, struct.unpack_from("<IQ", data, at))
    at += 12
    if kind in _SIZES:
        return at + count * _SIZES[kind]
    for _ in range(count):
        at = _after(data, at, kind)
    return at


def reason_of(error: Exception) -> str:
    """Return what is wrong with a file that transformers can't load, with the remedy."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if "not supported" in reason:  # an architecture that transformers doesn't know
        return f"{reason}. Give a folder with safetensors weights, or a hub name"
    if "ignore_mismatched_sizes" in reason:
        return "its tensors have other shapes than transformers expects from its metadata"
    if "valid JSON" in reason or isinstance(error, UnicodeDecodeError):  # transformers says so of any format
        return f"the file is damaged or encrypted: its metadata can't be read. {_AGAIN}"
    if isinstance(error, struct.error | ValueError | LookupError | OverflowError):
        return f"the file is damaged or incomplete ({reason}). {_AGAIN}"
    return reason  # such as too little memory


def _fault_in(header: bytes) -> str:
    """Return why a file with these first bytes isn't a GGUF file that can be read, or ""."""
    if not header:
        return f"it is empty. {_AGAIN}"
    if not header.startswith(_MAGIC):
        return _other_format(header)
    if len(header) < _HEADER_SIZE:
        return f"it ends within its header. {_AGAIN}"
    version = int.from_bytes(header[4:8], "little")
    if int.from_bytes(header[4:8], "big") in _VERSIONS:
        return "it was written for big-endian processors, which transformers doesn't read"
    if version not in _VERSIONS:
        return f"it is of GGUF's version {version}, and transformers reads 2 and 3: convert it with a current llama.cpp"
    return ""


def _other_format(header: bytes) -> str:
    """Return what a file with these first bytes is instead."""
    if header[8:9] == b"{":
        return "it is a safetensors file: give the folder that it is in"
    for start, format_and_remedy in _FORMATS.items():
        if header.startswith(start):
            return format_and_remedy
    return f"it doesn't begin as GGUF files do, so it is encrypted, damaged or of another format. {_AGAIN}"
