"""GGUF files: refusals before loading, transformers' arguments, and what is wrong with a file that can't be loaded."""

import re
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec.errors import ModelError
from specdec.models.gguf_header import GgufHeader
from specdec.models.gguf_settings import gguf_config

_LIBRARIES = "gguf", "accelerate"  # what transformers reads such files with
_MAGIC, _VERSIONS, _HEADER_SIZE = b"GGUF", (2, 3), 24
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_AGAIN = "Download it again, or decrypt it"
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


def config_of(path: Path) -> Any:
    """Return the configuration of a file's model, see ``gguf_config``.

    Raises:
        ModelError: the file is damaged, or a setting can't be applied; with the remedy.
    """
    try:
        return gguf_config(GgufHeader.of(path))
    except ModelError:
        raise
    except Exception as error:  # damaged files raise errors of any kind
        raise ModelError(f"can't load {str(path)!r}: {reason_of(error)}") from error


def gguf_arguments(header: GgufHeader) -> Mapping[str, Any]:
    """Return arguments of transformers' ``from_pretrained`` that load a file's weights dequantised.

    Raises as ``gguf_config``.
    """
    import transformers

    settings = {"config": gguf_config(header)}
    quantization = getattr(transformers, "GgufConfig", None)  # without it, transformers always dequantises
    if quantization is None:
        return settings
    return {**settings, "quantization_config": quantization(gguf_file=str(header.path), dequantize=True)}


def forget_quantization(model: Any) -> None:
    """Make a dequantised model one like any other, which can be saved and converted."""
    for name in ("hf_quantizer", "quantization_method"):
        vars(model).pop(name, None)
    vars(model.config).pop("quantization_config", None)
    model.is_quantized = False


def reason_of(error: Exception) -> str:
    """Return what is wrong with a file that transformers can't load, with the remedy."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if "not supported" in reason:  # an architecture that transformers doesn't know
        return f"{reason}. Give a folder with safetensors weights, or a hub name"
    if "ignore_mismatched_sizes" in reason:
        return "its tensors have other shapes than transformers expects from its metadata"
    if "valid JSON" in reason or isinstance(error, UnicodeError):  # transformers says so of any format
        return f"the file is damaged or encrypted: its metadata can't be read. {_AGAIN}"
    if isinstance(error, struct.error | ValueError | LookupError | OverflowError | TypeError):
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
