"""Files with cached results, such as measured choices and findings; an invalid file reads as None.

Derive a frozen model from ``Remembered`` and pass its class to ``read``, ``write`` and ``update``. A damaged file,
another model's file, and a file written by a version with other fields all read as None. ``machine.key_of`` makes a key
that changes with the machine and the versions. Nothing here raises if the disk is full or read-only.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

_TRIES, _PAUSE = 100, 0.01  # for the lock; its holder writes one small file


class Remembered(BaseModel):
    """Base of the models of cached files: frozen, strict types, finite numbers. Use tuples, as sets have no order.

    Validators of the derived model may check its fields against each other; ``read`` runs them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Value = TypeVar("Value", bound=BaseModel)


class _File(Remembered, Generic[Value]):
    digest: str  # of the value and its model's schema
    value: Value


def read(path: Path, model: type[Value]) -> Value | None:
    """Return the value that ``write`` wrote for a model; None if the file is missing, damaged or of another model."""
    try:
        if not path.is_file():  # reading a pipe would wait
            return None
        file = _File[model].model_validate_json(path.read_bytes())  # type: ignore[valid-type]  # made as it runs
    except (OSError, ValueError):  # pydantic's errors are ValueErrors
        return None
    value: Value = file.value
    return value if file.digest == _digest(value) else None


def write(path: Path, value: BaseModel) -> bool:
    """Replace a file atomically. Return False if it can't be written; the old file then stays."""
    text = json.dumps({"digest": _digest(value), "value": value.model_dump(mode="json")}, indent=1)
    try:
        replace_file(path, lambda file: file.write(text.encode()))
    except OSError:
        return False
    return True


def update(path: Path, model: type[Value], change: Callable[[Value | None], Value]) -> bool:
    """Replace a file's value by ``change(value)``; the value is None if it can't be read.

    Processes and threads update the files of a folder one at a time. One that has waited for a second goes ahead, and a
    change may be lost then.

    Returns:
        False if the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            return write(path, change(read(path, model)))
    except OSError:
        return False


def replace_file(path: Path, write_to: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name, flush it to the disk and rename it, so it appears as a whole or not at all.

    Raises:
        OSError: if it can't be written; the old file then stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as file:
            write_to(file)
        put_in_place(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def put_in_place(unfinished: Path, path: Path) -> None:
    """Flush a file that is written to the disk, and rename it to ``path``, on the same disk.

    Raises:
        OSError: if it can't be flushed or renamed; the old file then stays.
    """
    with unfinished.open("r+b") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def _digest(value: BaseModel) -> str:
    schema = json.dumps(type(value).model_json_schema(), sort_keys=True)
    return blake2b(f"{schema}\n{value.model_dump_json()}".encode(), digest_size=16).hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder. If the lock isn't available within a second, continue without: at worst one change is lost."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)  # which releases the lock
