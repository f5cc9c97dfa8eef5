"""Refusing to decode in a forked process, where a pass in several threads would hang: only one thread is forked."""

import os

from specdec.errors import RequestError


def refuse_fork(process: int, remedy: str) -> None:
    """Raise an error outside of the process with this id, in which the model was loaded.

    Raises:
        RequestError: with a remedy.
    """
    if os.getpid() != process:
        raise RequestError(
            "this generator was made before its process was forked, and a pass in several threads would hang here: "
            f"{remedy}, or start processes with multiprocessing's 'spawn' and make a generator in each"
        )
