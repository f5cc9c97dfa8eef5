"""The guard around a third party's code: whatever that raises ends the requests concerned, and names its author."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from specdec.decoding.sequence import Sequence
from specdec.errors import SpecdecError, failure


@contextmanager
def guard(author: str, sequences: Iterable[Sequence]) -> Iterator[None]:
    """End these requests by whatever is raised within, and no others."""
    try:
        yield
    except Exception as error:
        fault = error if isinstance(error, SpecdecError) else failure(author, error)
        for sequence in sequences:
            sequence.fail(fault)
