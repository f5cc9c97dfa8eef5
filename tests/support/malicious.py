"""A pickle that does something when it is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)
