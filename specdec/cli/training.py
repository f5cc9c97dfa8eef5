"""The command that trains a draft head for a model."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from specdec.cli.model_choice import ModelChoice
from specdec.cli.options import EXIT_INTERRUPTED, Threads, before_anything_runs, refusing, use_threads
from specdec.cli.progress import status
from specdec.errors import RequestError, SpecdecError

if TYPE_CHECKING:
    from specdec.training import HeadSettings, Progress, TrainedHead
    from specdec.training.text_export import Layout

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_DRAWINGS = 0.5
_LEAST_SECONDS_OF_REPORT, _REPORT_SHARE = 20.0, 0.02  # for decoding with the new head


class Kind(Enum):
    """The kinds of models that can be trained."""

    head = "head"


def train(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    kind: Annotated[Kind, typer.Argument(help="head: an EAGLE-3 draft head")],
    model: Annotated[str, typer.Option(help="a folder or hub name; 'demo' is built in, 'smollm2' a larger one")],
    minutes: Annotated[float, typer.Option(help="time for text and training")] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="the head's folder (default: in the cache, where auto and eagle3 find it)", show_default=False
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="torch device, e.g. cuda (default: a GPU if torch has one)", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="of the model, such as bfloat16 (default: its own)", show_default=False)
    ] = None,
    vocabulary: Annotated[int, typer.Option(min=1, help="tokens that the head can draft, the most frequent")] = 8192,
    prompts: Annotated[
        Path | None,
        typer.Option(help="prompts to answer, as JSON Lines (default: the model's own)", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="for text and training")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with an interrupted run, or with the text of an earlier one")
    ] = False,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="LAYOUT FILE",
            show_default=False,
            help="write the text as training data for specforge or speculators, and train no head",
        ),
    ] = None,
    has_report: Annotated[
        bool,
        typer.Option("--report/--no-report", help="write report.html into the head's folder, with curves and speeds"),
    ] = True,
    threads: Threads = None,
) -> None:
    """Train a draft head on text that the model writes itself.

    No data is needed. A plan is printed first. Text is kept in the head's folder, and so is the best head so far, by
    accepted length on held-out text. Ctrl-C ends the run with it. A run that was interrupted or killed goes on with
    --resume and the same options, and counts the time before; with other options, a new run goes on with its text.
    """
    with before_anything_runs():
        if minutes <= 0:
            raise RequestError(f"--minutes {minutes:g}: give more than 0")
        from specdec.training import HeadSettings, Watch, train_head

        layout = None if export is None else _layout(export[0])
        use_threads(threads)
        loaded, tokenizer = ModelChoice(model, dtype, device, weights="stock", backend="hf").load()
        tokens = None if prompts is None else _encoded(prompts, tokenizer)
    settings = HeadSettings(minutes=minutes, draft_vocab_size=vocabulary, seed=seed)
    console = Console(highlight=False, markup=False)
    try:
        with refusing(), _progress() as show:
            watch = Watch(lambda plan: console.print(*plan.lines(), sep="\n", soft_wrap=True), show)
            given = loaded, tokenizer, out, settings, tokens, resume, watch
            if layout is not None and export is not None:
                console.print(_export(layout, export[1], given), soft_wrap=True)
                return
            head = train_head(*given)
    except KeyboardInterrupt:
        message = "interrupted before a head was trained; the text so far is kept: --resume goes on with it"
        Console(stderr=True, highlight=False).print(message, soft_wrap=True)
        raise
    _print(console, head, is_found=out is None)
    if has_report:
        facts = {
            "model": model,
            "minutes": f"{minutes:g}",
            "draft vocabulary": f"{vocabulary:,} tokens",
            "seed": str(seed),
        }
        _report(console, head, (loaded, tokenizer), settings, facts)
    if head.is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _layout(name: str) -> "Layout":
    from specdec.training.text_export import Layout

    try:
        return Layout(name)
    except ValueError:
        raise RequestError(f"--export {name}: give specforge or speculators") from None


def _export(layout: "Layout", path: Path, given: tuple[Any, ...]) -> str:
    """Write the model's text as a file; return what was written."""
    from specdec.training import write_own_text
    from specdec.training.text_export import write_text

    text, script = write_own_text(*given)
    write_text(path, layout, text, script, given[1])
    return f"{path}: {len(text):,} documents, {text.num_answer_tokens:,} answer tokens, for {layout.value}"


def _print(console: Console, head: "TrainedHead", is_found: bool) -> None:
    shown = head.acceptance
    depths = ", ".join(f"{share:.2f}" for share in shown.chain)
    ended = "interrupted; the best head so far" if head.is_interrupted else "the best head"
    console.print(
        f"{ended}: {shown.tokens_per_step:.2f} tokens per step on held-out text by a chain of {len(shown.chain)} "
        f"(accepted by depth: {depths})",
        soft_wrap=True,
    )
    if is_found:
        console.print(f"auto, the default strategy, drafts with it for this model ({head.folder})", soft_wrap=True)
        console.print("compare: specdec compare auto:head=false auto eagle3 --model MODEL", soft_wrap=True)
    else:
        console.print(f"use it: --proposer eagle3:head={head.folder}", soft_wrap=True)


def _report(
    console: Console, head: "TrainedHead", loaded: tuple[Any, Any], settings: "HeadSettings", facts: dict[str, str]
) -> None:
    """Write the report page; what keeps it from being written is printed, as the head is there all the same."""
    try:
        from specdec.pictures.training_report import check_training_report, measure_head, write_training_report

        check_training_report()
        comparison = None
        if not head.is_interrupted:
            with status("measuring the head on this machine"):
                seconds = max(_LEAST_SECONDS_OF_REPORT, _REPORT_SHARE * 60 * settings.minutes)
                comparison = measure_head(*loaded, head.folder, seconds)
        path = head.folder / "report.html"
        write_training_report(path, head, comparison, facts)
    except SpecdecError as error:
        console.print(f"no report page: {error}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print("no report page: interrupted", soft_wrap=True)
    else:
        console.print(f"report: {path}", soft_wrap=True)


def _encoded(path: Path, tokenizer: Any) -> list[list[int]]:
    """Read prompts, as token ids, instructions and texts through the chat template if there is one."""
    from specdec.comparison.prompts import as_chat, load_prompts

    if tokenizer is None:
        raise RequestError("--prompts needs the model's tokenizer, and there is none")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    found = list[list[int]]()
    for each in as_chat(load_prompts(path), tokenizer, chat=has_template or None):
        given = each.prompt
        if isinstance(given, str):
            found.append(list(tokenizer.encode(given)))
        elif given and isinstance(given[0], int):
            found.append(list(given))
        else:
            rendered = tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
            found.append(list(tokenizer.encode(rendered, add_special_tokens=False)))
    return found


@contextmanager
def _progress() -> "Iterator[Callable[[Progress], None]]":
    """Show the last report: on a terminal in one line, elsewhere a line from time to time and for a better head."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(Text(""), console=console, transient=True, auto_refresh=False, redirect_stdout=True) as live:
        drawn = -_SECONDS_BETWEEN_DRAWINGS

        def show(progress: "Progress") -> None:
            nonlocal drawn
            if time.monotonic() - drawn >= _SECONDS_BETWEEN_DRAWINGS:
                drawn = time.monotonic()
                line = Text(progress.line(), style="dim", no_wrap=True, overflow="ellipsis")
                live.update(line, refresh=True)

        yield show


class _Lines:
    """Progress for a log."""

    def __init__(self, console: Console) -> None:
        self._console, self._said, self._best = console, time.monotonic(), 0.0

    def __call__(self, progress: "Progress") -> None:
        is_better = progress.tokens_per_step > self._best
        if is_better or time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said, self._best = time.monotonic(), progress.tokens_per_step
            self._console.print(progress.line(), style="dim", highlight=False, markup=False, soft_wrap=True)
