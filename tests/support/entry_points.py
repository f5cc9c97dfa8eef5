"""Entry points of distributions that aren't installed."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest


class FakeEntryPoint:
    """An entry point, as importlib.metadata gives it for an installed distribution."""

    def __init__(self, distribution: str | None, load: Callable[[], object], name: str = "some_name") -> None:
        self.dist = SimpleNamespace(name=distribution) if distribution is not None else None
        self.name = name
        self.value = "some_module"
        self.load = load


def install(monkeypatch: pytest.MonkeyPatch, **hooks: Callable[..., object]) -> None:
    """Pretend that the distribution ``swift-dist``, with these hooks, is the only plug-in that is installed."""
    entry = FakeEntryPoint("swift-dist", lambda: SimpleNamespace(**hooks))
    monkeypatch.setattr("specdec.plugins.names.entry_points", lambda **_: [entry])
