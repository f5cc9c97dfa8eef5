"""Entry points of distributions that aren't installed."""

from collections.abc import Callable
from types import SimpleNamespace


class FakeEntryPoint:
    """An entry point, as importlib.metadata gives it for an installed distribution."""

    def __init__(self, name: str | None, load: Callable[[], object]) -> None:
        self.dist = SimpleNamespace(name=name) if name is not None else None
        self.value = "some_module"
        self.load = load
