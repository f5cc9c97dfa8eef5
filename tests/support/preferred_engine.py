"""A third party's engine that wants models by their names, and drives them as torch does: its text is torch's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from specdec import hookimpl
from specdec.backends.base import Backend, BackendOptions
from specdec.backends.hf import HFBackend
from specdec.layout import Compiler
from specdec.models.loading import ModelSource, load_pretrained
from tests.support import entry_points


@dataclass(eq=False)
class Engine:
    """The engine's own kind of model: torch's, in a box."""

    boxed: Any
    config: Any = None
    generation_config: Any = None


def install(
    monkeypatch: pytest.MonkeyPatch,
    heard: list[ModelSource],
    declines: Any = "",
    read: Exception | None = None,
    load: Exception | None = None,
) -> None:
    """Make this a machine with that engine alone, which declines, or fails to read or to load, as it is told.

    What it is asked about is added to ``heard``.
    """

    class Swift(HFBackend):
        is_preferred: ClassVar[bool] = True
        runs_layers: ClassVar[bool] = False

        @classmethod
        def accepts(cls, model: object) -> bool:
            return isinstance(model, Engine)

        @classmethod
        def declines(cls, source: ModelSource) -> str:
            heard.append(source)
            return str(declines(source) if callable(declines) else declines)

        @classmethod
        def read(cls, source: ModelSource, tokenizer: Any | None, options: Any) -> tuple[Any, Any]:
            if read is not None:
                raise read
            model, tokenizer = load_pretrained(source.name, tokenizer, source.dtype)
            return Engine(model, model.config, model.generation_config), tokenizer

        @classmethod
        def load(cls, model: Any, compiler: Compiler, options: BackendOptions) -> Any:
            if load is not None:
                raise load
            return HFBackend.load(model.boxed, compiler)

    @hookimpl
    def specdec_backends() -> Mapping[str, type[Backend]]:
        return {"swift": Swift}

    entry_points.install(monkeypatch, specdec_backends=specdec_backends)
