"""Commands about the heads that were trained on this machine: which there are, how fast they are, and their removal."""

import shutil
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

heads = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@heads.callback()
def _list(context: typer.Context) -> None:
    """List trained draft heads; measure or remove one."""
    if context.invoked_subcommand is not None:
        return
    from specdec.heads.head_facts import facts_of
    from specdec.heads.local_heads import local_folders

    console, folders = Console(highlight=False, markup=False), local_folders()
    for folder in folders:
        facts = facts_of(folder)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 2**20
        trained = date.fromtimestamp((folder / "config.json").stat().st_mtime)
        known = "unknown model" if facts is None else f"{facts.model}, {facts.tokens_per_step:.2f} tokens per step"
        console.print(
            f"{folder.name[:_SHOWN]}  {known}, trained on {trained}, {size:.0f} MB\n"
            f"{'':{_SHOWN}}  {_state(None if facts is None else facts.speeds)}",
            soft_wrap=True,
        )
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
    """Measure a model's head on this machine; auto drafts with it from then on if that is faster."""
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
        speeds = speeds_of(measure_head(model, tokenizer, folder, seconds, backend=choice.backend))
    note_speeds(folder, speeds)
    typer.echo(verdict(speeds))


@heads.command("remove")
@with_version
def remove(names: Annotated[list[str], typer.Argument(help="of heads, as `specdec heads` lists them")]) -> None:
    """Remove heads, with the text that they learnt from."""
    from specdec.heads.local_heads import local_folders

    with before_anything_runs():
        chosen = [_named(name, local_folders()) for name in names]
    for folder in chosen:
        shutil.rmtree(folder)
        typer.echo(f"removed {folder}")


def verdict(speeds: "Speeds") -> str:
    """Return in words whether ``auto`` drafts with a head, and why."""
    measured = (
        f"auto decodes {speeds.with_head:.2f} times as fast as plain decoding with the head and {speeds.without:.2f} "
        "times without, measured on this machine"
    )
    if speeds.is_faster:
        return f"{measured}: it drafts with the head for this model from now on"
    return f"{measured}: it goes on without the head"


def _state(speeds: "Speeds | None") -> str:
    if speeds is None:
        return "not measured, so auto doesn't draft with it: `specdec heads measure --model MODEL`"
    used = "auto drafts with it" if speeds.is_faster else "auto doesn't draft with it"
    return (
        f"{used}: {speeds.with_head:.2f} times plain decoding's speed with it, {speeds.without:.2f} without, "
        f"{speeds.alone:.2f} by it alone"
    )


def _named(name: str, folders: list[Path]) -> Path:
    """Return the only folder whose name begins so; raises RequestError."""
    found = [folder for folder in folders if name and folder.name.startswith(name)]
    if len(found) != 1:
        there = ", ".join(folder.name[:_SHOWN] for folder in folders) or "none"
        raise RequestError(f"{'no' if not found else 'more than one'} head is called {name}: there are {there}")
    return found[0]
