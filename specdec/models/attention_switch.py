"""A model's configuration with another attention for a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def switched(config: Any, name: str) -> Iterator[None]:
    """Set the attention of a text configuration by name, and put the former one back, also after an error."""
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
