"""Whose failure a failure is: whatever a plug-in raises ends its own requests, and the error names the plug-in.

A proposer or verifier fails its own request. The backend and the mask compiler fail all requests of their pass. An
engine fails the requests it drafts for. A logits processor fails its request if the text needs the node at which it
raised; ``NodeDistributions.faults`` has its errors until then.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from specdec.decoding.request_state import RequestState
from specdec.errors import SpecdecError, failure


@contextmanager
def guard(author: str, requests: Iterable[RequestState]) -> Iterator[None]:
    """End the unfinished ones of these requests by whatever is raised within; warn if all have finished."""
    try:
        yield
    except Exception as error:
        fault = error if isinstance(error, SpecdecError) else failure(author, error)
        unfinished = [request for request in requests if not request.is_finished]
        for request in unfinished:
            request.fail(fault)
        if not unfinished:
            warnings.warn(str(fault), stacklevel=2)
