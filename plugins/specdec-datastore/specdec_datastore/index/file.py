"""The file of an index: a header, and arrays that are mapped into memory.

The format: ``MAGIC``; the length and the CRC-32 of the header, 4 bytes each; the header as JSON; and the following
arrays, each starting at a multiple of 4,096 bytes:
- ``starts``, uint32: for each id, where the suffixes that begin with it start in ``suffixes``, and the end of the last;
- ``tokens``, uint16 or uint32: the documents, each followed by a break, the type's largest number;
- ``suffixes``, uint32: the places of all tokens, sorted by the ``depth`` tokens from there on;
- ``column_1`` to ``column_3``, types as ``tokens``: the second, third and fourth token of each suffix, in the order of
  ``suffixes``. Short n-grams, which occur often, are looked up in these arrays, where their entries are consecutive.
"""

import json
import mmap
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdec.errors import RequestError
from specdec_datastore.tokenizer_fingerprint import TokenizerFingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"specdec index\n"
VERSION = 1
NUM_COLUMNS = 3
_Code = Literal["H", "I"]
_ALIGNED = 4096
_WRITTEN = 1 << 16  # bytes at once: the system's cache keeps them in one piece, all of which a page fault may map
_LONGEST_HEADER = 1 << 16
_MAKE = "make one with `specdec index FOLDER --output FILE`"


class Header(BaseModel):
    """The header of an index file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = VERSION
    byteorder: str = sys.byteorder
    tokenizer: TokenizerFingerprint
    num_documents: int = Field(ge=1)
    num_tokens: int = Field(ge=1)
    num_ids: int = Field(ge=1, description="the largest id, plus one")
    depth: int = Field(ge=1, description="tokens by which suffixes are sorted")

    @property
    def token_code(self) -> _Code:
        """The type code of a token, for ``array`` and ``memoryview``; a break is the type's largest number."""
        return "H" if self.num_ids < 1 << 16 else "I"

    @property
    def separator(self) -> int:
        """The number that represents a break."""
        return (1 << 16) - 1 if self.token_code == "H" else (1 << 32) - 1

    def sections(self, begin: int) -> Mapping[str, tuple[int, int, _Code]]:
        """Return each array's offset, size in bytes and type, if the header ends at ``begin``."""
        sizes: dict[str, tuple[int, _Code]] = {
            "starts": (self.num_ids + 1, "I"),
            "tokens": (self.num_tokens + self.num_documents, self.token_code),
            "suffixes": (self.num_tokens, "I"),
        } | {f"column_{nth}": (self.num_tokens, self.token_code) for nth in range(1, NUM_COLUMNS + 1)}
        found = dict[str, tuple[int, int, _Code]]()
        for name, (count, code) in sizes.items():
            begin = -(-begin // _ALIGNED) * _ALIGNED
            length = count * (2 if code == "H" else 4)
            found[name] = begin, length, code
            begin += length
        return found


class IndexFile:
    """An index file mapped into memory.

    Attributes:
        path, header, num_bytes: of the file.
        starts, tokens, suffixes, columns: its arrays; unusable after ``close``.
    """

    def __init__(self, path: Path) -> None:
        """Open and map a file.

        Raises:
            RequestError: if the file doesn't exist, isn't an index, or is damaged or truncated.
        """
        self.path = path
        with _opened(path) as file:
            self.header, begin = _read_header(file, path)
            self.num_bytes = os.fstat(file.fileno()).st_size
            sections = self.header.sections(begin)
            expected = max(start + length for start, length, _ in sections.values())
            if self.num_bytes != expected:
                state = "truncated" if self.num_bytes < expected else "damaged"
                raise RequestError(
                    f"the index {path} is {state}: it has {self.num_bytes:,} bytes and its header says {expected:,}; "
                    f"{_MAKE}"
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(self._map) as whole:
            arrays = {
                name: whole[start : start + length].cast(code) for name, (start, length, code) in sections.items()
            }
        self._arrays = list(arrays.values())
        self.starts, self.tokens, self.suffixes = (arrays[name] for name in ("starts", "tokens", "suffixes"))
        self.columns = tuple(arrays[f"column_{nth}"] for nth in range(1, NUM_COLUMNS + 1))
        self._advise("MADV_RANDOM")
        self._advise("MADV_NOHUGEPAGE")

    def drop_pages(self) -> None:
        """Release the memory of pages that were read; reading them again uses the system's cache."""
        self._advise("MADV_DONTNEED")

    def _advise(self, name: str) -> None:
        advice = getattr(mmap, name, None)
        if advice is not None:
            self._map.madvise(advice)

    def close(self) -> None:
        """Unmap the file."""
        for array in self._arrays:
            array.release()
        self._map.close()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RequestError(f"the index {path} can't be read ({error.strerror}): {_MAKE}") from error
    with file:
        yield file


def _read_header(file: BinaryIO, path: Path) -> tuple[Header, int]:
    """Read the header; return it and the offset of its end."""
    if file.read(len(MAGIC)) != MAGIC:
        raise RequestError(f"{path} isn't a specdec index: {_MAKE}")
    length, checksum = (int.from_bytes(file.read(4), "little") for _ in range(2))
    text = file.read(min(length, _LONGEST_HEADER))
    damaged = f"the index {path} is damaged: its header can't be read; {_MAKE}"
    if len(text) != length or zlib.crc32(text) != checksum:
        raise RequestError(damaged)
    facts = json.loads(text)
    if facts.get("version") != VERSION or facts.get("byteorder") != sys.byteorder:
        theirs = f"version {facts.get('version')}, {facts.get('byteorder')}-endian"
        raise RequestError(
            f"the index {path} is of {theirs}; this is version {VERSION}, {sys.byteorder}-endian: {_MAKE}"
        )
    try:
        return Header.model_validate(facts), file.tell()
    except ValidationError:
        raise RequestError(damaged) from None


def write(path: Path, header: Header, arrays: "Mapping[str, NDArray[np.unsignedinteger[Any]]]") -> int:
    """Write an index under another name and rename it, so it appears as a whole or not at all; return its size."""
    text = header.model_dump_json().encode()
    begin = MAGIC + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text
    with replacing(path) as file:
        file.write(begin)
        for name, (start, length, _) in header.sections(len(begin)).items():
            assert arrays[name].nbytes == length, "arrays have the lengths in the header"
            file.write(bytes(start - file.tell()))
            array = arrays[name].data.cast("B")
            for place in range(0, length, _WRITTEN):
                file.write(array[place : place + _WRITTEN])
        return file.tell()


@contextmanager
def replacing(path: Path, opened: Callable[[Path], BinaryIO] = lambda path: path.open("xb")) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` after the block; it is removed if the block fails.

    Raises:
        RequestError: if it can't be written.
    """
    written = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with opened(written) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except OSError as error:
        raise RequestError(f"{path} can't be written ({error.strerror or error})") from error
    finally:
        written.unlink(missing_ok=True)
