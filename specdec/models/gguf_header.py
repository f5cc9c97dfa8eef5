"""The header of a GGUF file, without its vocabulary: in a tenth of a second where the gguf library takes seconds.

The layout is that of ``docs/gguf.md`` in ggml's repository, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by type
_STRING, _ARRAY = 8, 9
_COUNTS_AT = 8  # after the magic number and the version


class GgufHeader(NamedTuple):
    """The architecture, settings and tensor names in a file.

    Attributes:
        path: of the file.
        architecture: the family, by llama.cpp's name.
        settings, tokenizer: keys of the model and of the tokenizer, without their prefixes; lists of strings are None.
        tensors: names.
    """

    path: Path
    architecture: str
    settings: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    tensors: Sequence[str]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file's header; a damaged one raises an error of any kind."""
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data, _COUNTS_AT)
            num_tensors, num_keys = reader.numbers("QQ")
            keys = {reader.string(): reader.value(*reader.numbers("I")) for _ in range(num_keys)}
            tensors = [reader.tensor() for _ in range(num_tensors)]
        kind = str(keys["general.architecture"])
        settings, tokenizer = (
            {key.removeprefix(prefix): value for key, value in keys.items() if key.startswith(prefix)}
            for prefix in (f"{kind}.", "tokenizer.")
        )
        return cls(path, kind, settings, tokenizer, tensors)


class _Reader:
    """Reads values one after another.

    Raises ``struct.error`` at the end of the file, and ``UnicodeError`` for what is no text.
    """

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data, self._at = data, at

    def numbers(self, types: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{types}", self._data, self._at)
        self._at += struct.calcsize(f"<{types}")
        return found

    def string(self) -> str:
        return self._bytes().decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.numbers(_NUMBERS[kind])[0]
        kind, count = self.numbers("IQ")
        if kind in _NUMBERS:
            return [*self.numbers(f"{count}{_NUMBERS[kind]}")]
        for _ in range(count):
            self._bytes() if kind == _STRING else self.value(kind)
        return None

    def tensor(self) -> str:
        """Return a tensor's name, and skip its shape, type and place."""
        name, (num_sizes,) = self.string(), self.numbers("I")
        self.numbers(f"{num_sizes}QIQ")
        return name

    def _bytes(self) -> bytes:
        (size,) = self.numbers("Q")
        if size > len(self._data):
            raise UnicodeError("a string longer than the file")
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise struct.error("a string ends after the file")
        return self._data[start : self._at]
