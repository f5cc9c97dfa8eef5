"""Shared fixtures: the built-in model, loaded once, and one thread, since small products only lose by more."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from specdec import demo

# Loading torch and building models makes first examples slow; nothing here is about time.
settings.register_profile("specdec", deadline=None, derandomize=True)
settings.load_profile("specdec")


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def built_in() -> tuple[Any, Any]:
    """The built-in model and its tokenizer."""
    return demo.load()
