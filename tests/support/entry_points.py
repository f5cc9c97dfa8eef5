"""Entry points of distributions that aren't installed."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest


class FakeEntryPoint:
    """An entry point, as importlib.metadata gives it for an installed distribution."""

    def __init__(self, name: str | None, load: Callable[[], object]) -> None:
        self.dist = SimpleNamespace(name=name) if name is not None else None
        self.value = "some_module"
        self.load = load


def install(monkeypatch: pytest.MonkeyPatch, **hooks: Callable[..., object]) -> None:
    """Pretend that the distribution ``swift-dist``, with these hooks, is the only plug-in that is installed."""
    entry = FakeEntryPoint("swift-dist", lambda: SimpleNamespace(**hooks))
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [entry])
