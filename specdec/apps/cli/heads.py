"""Commands about the heads that were trained on this machine: which there are, how fast they are, and their removal."""

import shutil
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.option_groups import with_option_groups
from specdec.apps.cli.options import Threads, before_anything_runs, use_threads
from specdec.apps.cli.progress import status
from specdec.apps.cli.version_option import with_version
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.heads.head_facts import Speeds

_SHOWN = 8  # characters of a head's name
MEASURED_SECONDS = 60.0
_UNMEASURED = "not measured, so auto doesn't draft with it: `specdec heads measure --model MODEL`"

heads = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@heads.callback()
def _list(context: typer.Context) -> None:
    """List trained draft heads; measure or remove one."""
    if context.invoked_subcommand is not None:
        return
    from specdec.heads.local_heads import local_folders

    console, folders = Console(highlight=False, markup=False), local_folders()
    for folder in folders:
        with suppress(OSError):  # it was removed meanwhile
            console.print(*_described(folder), sep=f"\n{'':{_SHOWN}}  ", soft_wrap=True)
    if not folders:
        console.print(
            "no head was trained on this machine: `specdec train head --model MODEL` trains one", soft_wrap=True
        )


@heads.command("measure")
@with_version
@with_option_groups
def measure(
    choice: ModelChoice = USUAL,
    seconds: Annotated[float, typer.Option(min=1, help="time for the measurement")] = MEASURED_SECONDS,
    threads: Threads = None,
) -> None:
    """Measure a model's head on this machine; auto drafts with it from then on if that is faster.

    That holds for the backend and the precision that were measured.
    """
    with before_anything_runs():
        choice.check_early()
        from specdec.apps.pictures.training_report import check_training_report, measure_head, speeds_of
        from specdec.heads.head_facts import note_speeds
        from specdec.heads.local_heads import head_of

        check_training_report()
        use_threads(threads)
        model, tokenizer = choice.load()
        folder = head_of(model)
        if folder is None:
            raise RequestError(
                f"no head was trained for {choice.name} on this machine: `specdec train head --model {choice.name}` "
                "trains one"
            )
    with status("measuring the head on this machine"):
        comparison, setup = measure_head(model, tokenizer, folder, seconds, **choice.stages)
    speeds = speeds_of(comparison)
    note_speeds(folder, choice.name, setup, speeds)
    typer.echo(verdict(setup, speeds))


@heads.command("remove")
@with_version
def remove(names: Annotated[list[str], typer.Argument(help="of heads, as `specdec heads` lists them")]) -> None:
    """Remove heads, with the text that they were trained on. Don't remove one that is being trained."""
    from specdec.heads.local_heads import local_folders

    with before_anything_runs():
        folders = local_folders()
        for folder in dict.fromkeys(_named(name, folders) for name in names):
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise RequestError(f"{folder} can't be removed: {error.strerror or error}") from None
            typer.echo(f"removed {folder}")


def verdict(setup: str, speeds: "Speeds") -> str:
    """Return in words whether ``auto`` drafts with a head, and why."""
    measured = (
        f"auto decodes {speeds.with_head:.2f} times as fast as plain decoding with the head and {speeds.without:.2f} "
        f"times without, by {setup}"
    )
    if speeds.is_faster:
        return f"{measured}: it drafts with the head for this model there from now on"
    if speeds.with_head > speeds.without:
        measured += ", a difference that a longer measurement may confirm (specdec heads measure --seconds)"
    return f"{measured}: auto goes on without the head"


def _described(folder: Path) -> list[str]:
    """Return what is known of a folder of ``local_folders``, in lines; raises OSError."""
    from specdec.heads.head_facts import facts_of

    facts, files = facts_of(folder), [file.stat() for file in folder.iterdir() if file.is_file()]
    name = f"{folder.name[:_SHOWN]}  {facts.model or 'unknown model'}"
    size = sum(file.st_size for file in files) / 2**20
    if not (folder / "config.json").exists():
        return [f"{name}, text without a head, {size:.0f} MB"]
    trained = date.fromtimestamp((folder / "config.json").stat().st_mtime)
    steps = f", {facts.tokens_per_step:.2f} tokens per step" if facts.tokens_per_step else ""
    states = [_state(*each) for each in facts.speeds.items()] or [_UNMEASURED]
    return [f"{name}{steps}, trained on {trained}, {size:.0f} MB", *states]


def _state(setup: str, speeds: "Speeds") -> str:
    used = "auto drafts with it" if speeds.is_faster else "auto doesn't draft with it"
    return (
        f"{used} by {setup}: {speeds.with_head:.2f} times plain decoding's speed with it, {speeds.without:.2f} "
        f"without, {speeds.alone:.2f} by the head alone"
    )


def _named(name: str, folders: list[Path]) -> Path:
    """Return the only folder whose name begins so; raises RequestError."""
    found = [folder for folder in folders if name and folder.name.startswith(name)]
    if len(found) != 1:
        there = ", ".join(folder.name[:_SHOWN] for folder in folders) or "no heads yet"
        raise RequestError(f"{'no' if not found else 'more than one'} head is called {name}: there are {there}")
    return found[0]
