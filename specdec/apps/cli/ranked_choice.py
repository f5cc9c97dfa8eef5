"""The options of commands that load a model: under torchrun, all processes drive it together."""

import functools
import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from specdec.apps.cli.model_choice import ModelChoice
from specdec.apps.cli.option_groups import with_option_groups
from specdec.apps.cli.options import EXIT_ERROR, before_anything_runs
from specdec.errors import ModelError, RequestError

if TYPE_CHECKING:
    from specdec.backends.base import BackendOptions
    from specdec.backends.process_group import GroupBackend
    from specdec.models.loading import ModelSource
    from specdec.plugins.registry import Registry
    from specdec.runtime.backend_choice import LoadedModel
    from specdec.strategies.base import Proposer

_TIMEOUT = 60.0  # seconds that ranks wait for each other


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: its option groups become options, and under torchrun all processes load its model."""
    (place,) = (name for name, hint in get_type_hints(command).items() if hint is ModelChoice)

    @functools.wraps(command)
    def ranked(**given: Any) -> None:
        with ExitStack() as closing:
            if is_ranked():
                given[place] = RankedChoice.of(given[place], closing)
            command(**given)

    return with_option_groups(ranked)


@dataclass(frozen=True, slots=True)
class RankedChoice(ModelChoice):
    """A model that torchrun's processes drive together: all load it, and rank 0 runs the command.

    Closing ``closing`` ends the group.
    """

    closing: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def of(cls, choice: ModelChoice, closing: ExitStack) -> "RankedChoice":
        """Return the same choice with a backend for several processes.

        Raises:
            typer.Exit: if none is installed, or the choice has options for a single process.
        """
        with before_anything_runs():
            backend = _backend_for_group(choice.backend)
            if choice.device is not None or choice.dtype is not None:
                raise RequestError(
                    "--device and --dtype are for a single process; with torchrun, the checkpoint's dtype is used"
                )
        named = {each.name: getattr(choice, each.name) for each in fields(choice)}
        return cls(**named | {"device": "cpu", "backend": backend}, closing=closing)

    def check_early(self, *strategies: str, **given: Any) -> None:
        """Check nothing: ``load`` reports what one rank refuses, which ends the others."""

    def check(self, *strategies: Any) -> None:
        """Check nothing, for the same reason."""

    def load(self, *strategies: Any, is_logged: bool = False, has_media: bool = False) -> tuple[Any, Any]:
        import torch.distributed as dist

        from specdec.plugins.registry import load_plugins

        if not dist.is_initialized():
            dist.init_process_group(timeout=timedelta(seconds=_TIMEOUT))
            self.closing.callback(dist.destroy_process_group)
        try:
            model, tokenizer = ModelChoice.load(self, *strategies, is_logged=is_logged, has_media=has_media)
        except ModelError as error:
            if dist.get_rank():  # rank 0 may load it without an error
                print(f"rank {dist.get_rank()}: {error}", file=sys.__stderr__)
            raise
        try:
            leads = self.closing.enter_context(self._engine(load_plugins())[0].group(model, _TIMEOUT))
        except ModelError as error:
            if dist.get_rank():  # rank 0 prints the error
                raise typer.Exit(EXIT_ERROR) from error
            raise
        if not leads:
            raise typer.Exit
        return model, tokenizer

    def read(self, registry: "Registry", strategies: Iterable["Proposer"], source: "ModelSource") -> "LoadedModel":
        from specdec.runtime.backend_choice import LoadedModel

        engine, options = self._engine(registry)
        return LoadedModel(*engine.read_on_rank(source, options))

    def _engine(self, registry: "Registry") -> "tuple[type[GroupBackend], BackendOptions]":
        from specdec.backends.process_group import GroupBackend

        engine, options = registry.backend(self.backend)
        assert issubclass(engine, GroupBackend), "`of` has chosen it"
        return engine, options


def _backend_for_group(given: str) -> str:
    """Return the backend for all processes of torchrun; for "auto", the first that is installed.

    Raises:
        PluginError: for an unknown backend, or refused options.
        RequestError: for a backend for a single process, or if no other is installed.
    """
    from specdec.backends.process_group import GroupBackend
    from specdec.plugins.names import not_installed
    from specdec.plugins.registry import load_plugins

    registry = load_plugins()
    if given != "auto":
        if not issubclass(registry.backend(given)[0], GroupBackend):
            raise RequestError(f"--backend {given} is for a single process: start it without torchrun")
        return given
    names = [registry.name_of(each) for each in registry.of_kind("backends") if issubclass(each.cls, GroupBackend)]
    if not names:
        raise RequestError(f"torchrun has started several processes: {not_installed('backends', 'distributed')}")
    return names[0]


def is_ranked() -> bool:
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def silence_followers() -> None:
    """Under torchrun, let only rank 0 use standard input and output."""
    if is_ranked() and os.environ.get("RANK") != "0":
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
        sys.stdin = io.StringIO("read by rank 0")
