"""Commands under torchrun: all ranks load the model, rank 0 goes on with the command, and the others follow it."""

import io
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.cli.model_choice import ModelChoice
from specdec.cli.options import EXIT_ERROR, before_anything_runs
from specdec.errors import ModelError, RequestError

if TYPE_CHECKING:
    from specdec.models.loading import ModelSource
    from specdec.runtime.engines import Opened

_SECONDS = 60.0  # that ranks wait for one another


@dataclass(frozen=True, slots=True)
class RankedChoice(ModelChoice):
    """A model that several processes drive, until ``closing`` is closed."""

    closing: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def of(cls, choice: ModelChoice, closing: ExitStack) -> "RankedChoice":
        """The same choice, driven by the backend for several processes."""
        with before_anything_runs():
            if choice.backend.partition(":")[0] not in {"auto", "distributed"}:
                raise RequestError(f"--backend {choice.backend} is for one process: start it without torchrun")
            if choice.device is not None or choice.dtype is not None:
                raise RequestError("--device and --dtype are for one process: a model is shared as its folder says")
        named = {each.name: getattr(choice, each.name) for each in fields(choice)} | {"device": "cpu"}
        if choice.backend == "auto":
            named["backend"] = "distributed"
        return cls(**named, closing=closing)

    def load(self, *strategies: Any) -> tuple[Any, Any]:
        import torch.distributed as dist

        from specdec.distributed import group

        if not dist.is_initialized():
            dist.init_process_group(timeout=timedelta(seconds=_SECONDS))
            self.closing.callback(dist.destroy_process_group)
        try:
            model, tokenizer = ModelChoice.load(self, *strategies)
        except ModelError as error:
            if dist.get_rank():  # rank 0 may have loaded it
                print(f"rank {dist.get_rank()}: {error}", file=sys.__stderr__)
            raise
        try:
            leads = self.closing.enter_context(group(model, _SECONDS))
        except ModelError as error:
            if dist.get_rank():  # rank 0 says it
                raise typer.Exit(EXIT_ERROR) from error
            raise
        if not leads:
            raise typer.Exit
        return model, tokenizer

    def read(self, strategies: Iterable[Any], source: "ModelSource") -> "Opened":
        from specdec.distributed.loading import read
        from specdec.plugins.registry import load_plugins
        from specdec.runtime.engines import Opened

        _, options = load_plugins().backend(self.backend)
        return Opened(*read(source.name, options.split))  # type: ignore[attr-defined]  # of the backend for several processes


def is_ranked() -> bool:
    """True in a process that torchrun has started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def silence_followers() -> None:
    """Leave all that there is to say to rank 0, and to read: standard input is the same for all."""
    if is_ranked() and os.environ.get("RANK") != "0":
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
        sys.stdin = io.StringIO("whatever rank 0 reads")
