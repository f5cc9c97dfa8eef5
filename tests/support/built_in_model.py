"""The built-in model, loaded once per process: what generators find out about it is remembered with it."""

from functools import cache
from typing import Any

from specdec import demo

_load = demo.load  # tests replace the attribute


@cache
def built_in() -> tuple[Any, Any]:
    """The built-in model in float32 and its tokenizer."""
    return _load()


def own_built_in() -> tuple[Any, Any]:
    """A built-in model of one's own: another test's generator may hold the weights of the shared one."""
    return _load()
