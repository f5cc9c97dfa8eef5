"""Whose failure an error is: it ends that plug-in's requests, and names the plug-in.

A proposer or verifier fails its own request, an engine the requests that it drafts for, and the backend with its mask
compiler all requests of the pass. A logits processor's error is in ``NodeDistributions.faults``, and fails its request
only if the text reaches that node.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from specdec.decoding.plan import Strategy
from specdec.decoding.request_state import RequestState
from specdec.errors import SpecdecError, failure
from specdec.target import Target
from specdec.verifiers.base import Verifier


def blame_backend(target: Target, requests: Iterable[RequestState]) -> AbstractContextManager[None]:
    """End these requests if the block raises: in modelling code, a mask compiler, or for lack of memory."""
    return _blame(target.author, requests)


def blame_proposer(strategy: Strategy, requests: Iterable[RequestState]) -> AbstractContextManager[None]:
    """End these requests if the block raises: in an engine or a drafter."""
    return _blame(f"proposer {strategy.name}", requests)


def blame_verifier(verifier: Verifier, request: RequestState) -> AbstractContextManager[None]:
    """End a request if the block raises: in its acceptance rule."""
    return _blame(f"verifier {type(verifier).__name__}", [request])


@contextmanager
def _blame(author: str, requests: Iterable[RequestState]) -> Iterator[None]:
    """End those of the requests that have not ended; warn if all have."""
    try:
        yield
    except Exception as error:
        fault = error if isinstance(error, SpecdecError) else failure(author, error)
        unfinished = [request for request in requests if not request.is_finished]
        for request in unfinished:
            request.fail(fault)
        if not unfinished:
            warnings.warn(str(fault), stacklevel=2)
