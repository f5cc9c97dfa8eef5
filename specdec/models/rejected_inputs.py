"""A model's own errors about images and recordings that don't fit a prompt, as errors of the request."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specdec.errors import RequestError, SpecdecError, in_one_line, is_out_of_memory


@contextmanager
def rejects(model: Any, names: str = "images or recordings") -> Iterator[None]:
    """Raise an error of a model that reads a prompt's inputs as a RequestError.

    Args:
        names: of the inputs.
    """
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:  # a third party's code
        if is_out_of_memory(error):
            raise
        raise RequestError(f"{type(model).__name__} rejected {names}: {in_one_line(error)}") from error
