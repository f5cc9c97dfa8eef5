"""Refuses to decode in a forked process: a fork copies only one thread, so a pass in several threads would hang."""

import os

from specdec.errors import RequestError

ONE_THREAD = "call torch.set_num_threads(1) first"
TORCH_IN_ONE_THREAD = "use backend='hf' and torch.set_num_threads(1)"  # of engines whose threads torch doesn't set


def refuse_fork(process: int, remedy: str) -> None:
    """Raise an error in any process but the one in which the model was loaded, which has the id ``process``.

    Raises:
        RequestError: with a remedy.
    """
    if os.getpid() != process:
        raise RequestError(
            "this generator was made before its process was forked, and a pass in several threads would hang here: "
            f"{remedy}, or start processes with multiprocessing's 'spawn' and make a generator in each"
        )
