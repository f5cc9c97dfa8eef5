"""Passes over several tokens that compute what passes over one token compute, for recurrent layers whose code differs.

Layers with a ``time_step_limit`` (Nemotron-H, Zamba 2) apply it in wide passes only. So ``generate`` limits the time
steps of the prompt and not those of generated tokens, and so do the passes here.

Another difference makes them slow: without kernels, Mamba-2's scan pads each pass to its ``chunk_size``, often 256,
although chunks of any size give the same states. On a CPU, a pass is cut into chunks of equal size instead, of 32
tokens or fewer, which need less padding and fewer products. Passes over drafts of a few tokens have a chunk for each,
whose states the cache finds (``layer_states.after_each``): so none of their tokens is read again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from transformers import PreTrainedModel

from specdec.models.notes import lock_of

_NO_LIMIT = (0.0, math.inf)
MOST_SINGLE = 16  # tokens of a pass in chunks of one token: the scan's cost grows with the square of their number
_MOST_IN_CHUNK = 32  # tokens: fastest for passes of 72, 128 and 256 tokens of a layer with 32 heads


class WidePasses:
    """The needs of a model's passes over several tokens; none for most models.

    Args:
        begin_only: True if a wide pass is right at the beginning of a text only.
        one_row: True if several rows can't share a pass.

    Attributes:
        limited: the modules whose wide passes limit their time steps.
        chunked: the modules whose wide passes are cut into chunks, on a CPU.
    """

    def __init__(self, model: PreTrainedModel, begin_only: bool = False, one_row: bool = False) -> None:
        self.limited = limited_modules(model)
        self.chunked = _chunked_modules(model)
        self.begin_only, self.one_row = begin_only, one_row

    @contextmanager
    def prepared(self, is_prompt: bool, num_tokens: int, is_cut: bool = False) -> Iterator[None]:
        """Prepare the layers for the pass in the block.

        Args:
            is_prompt: the tokens are those of a prompt, whose time steps are limited.
            num_tokens: tokens of each row, padding included.
            is_cut: the states after any token may be needed, so scans in chunks have one for each token.
        """
        with ExitStack() as stack:
            if self.chunked and num_tokens > 1:
                num_chunks = num_tokens if is_cut else math.ceil(num_tokens / _MOST_IN_CHUNK)
                size = math.ceil(num_tokens / num_chunks)
                stack.enter_context(_changed(self.chunked, "chunk_size", lambda own: min(own, size)))
            if not is_prompt and self.limited:
                stack.enter_context(without_limits(self.limited))
            yield


def limited_modules(model: PreTrainedModel) -> list[Any]:
    """Return the modules of a model that limit their time steps in wide passes."""
    with lock_of(model):  # passes of other threads lift the limits
        return [each for each in model.modules() if tuple(getattr(each, "time_step_limit", _NO_LIMIT)) != _NO_LIMIT]


def without_limits(modules: Sequence[Any]) -> AbstractContextManager[None]:
    """Temporarily lift the limits of some modules' time steps."""
    return _changed(modules, "time_step_limit", lambda _: _NO_LIMIT)


def _chunked_modules(model: PreTrainedModel) -> list[Any]:
    """Return the modules with Mamba-2's scan; none on other devices than a CPU, where kernels may run it."""
    if model.device.type != "cpu":
        return []
    return [each for each in model.modules() if hasattr(each, "chunk_size") and hasattr(each, "time_step_limit")]


@contextmanager
def _changed(modules: Sequence[Any], name: str, change: Callable[[Any], object]) -> Iterator[None]:
    """Temporarily change an attribute of some modules; it is restored after an error as well."""
    before = [getattr(module, name) for module in modules]
    try:
        for module, own in zip(modules, before, strict=True):
            setattr(module, name, change(own))
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            setattr(module, name, own)
