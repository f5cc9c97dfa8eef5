"""The guard around a third party's code: whatever that raises ends the requests concerned, and names its author."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from specdec.decoding.request_state import Sequence
from specdec.errors import SpecdecError, failure


@contextmanager
def guard(author: str, sequences: Iterable[Sequence]) -> Iterator[None]:
    """End these requests by whatever is raised within, and no others.

    One that has ended already stays as it is. Where all have, a warning tells of the error.
    """
    try:
        yield
    except Exception as error:
        fault = error if isinstance(error, SpecdecError) else failure(author, error)
        concerned = [sequence for sequence in sequences if not sequence.is_finished]
        for sequence in concerned:
            sequence.fail(fault)
        if not concerned:
            warnings.warn(str(fault), stacklevel=2)
