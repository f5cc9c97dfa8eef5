"""Memory that runs out in training is an error with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from specdec.errors import ModelError, is_out_of_memory


class MemoryExhaustedError(ModelError):
    """Memory ran out."""


@contextmanager
def within_memory(remedy: str) -> Iterator[None]:
    """Raise an error with a remedy if the block runs out of memory.

    Raises:
        MemoryExhaustedError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryExhaustedError(f"memory ran out: {remedy}") from error
