"""Passes a request's prompt, tokens and end to a transformers streamer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from specdec.decoding.request_state import RequestState as Request


@contextmanager
def streaming(
    streamer: Any | None, requests: Sequence[Request | Exception]
) -> Iterator[Callable[[Sequence[int]], None]]:
    """Yield a function that passes tokens to a streamer; the streamer receives the end even after an error."""
    if streamer is None:
        yield lambda _: None
        return
    try:
        for request in requests:
            if isinstance(request, Request):
                streamer.put(torch.tensor([request.tokens]))

        def put(tokens: Sequence[int]) -> None:
            for token in tokens:
                streamer.put(torch.tensor([token]))

        yield put
    finally:
        streamer.end()
