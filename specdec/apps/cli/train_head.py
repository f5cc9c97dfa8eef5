"""The command that trains a draft head for a model."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.heads import verdict
from specdec.apps.cli.option_groups import with_option_groups
from specdec.apps.cli.options import EXIT_INTERRUPTED, before_anything_runs, check_outputs
from specdec.apps.cli.progress import status
from specdec.apps.cli.training_options import USUAL_RUN, TrainedModel, TrainingRun
from specdec.apps.cli.training_progress import training_progress
from specdec.errors import RequestError, SpecdecError

if TYPE_CHECKING:
    from specdec.heads.head_facts import Speeds
    from specdec.heads.training import HeadSettings, TrainedHead
    from specdec.heads.training.script import Script
    from specdec.heads.training.text import TrainingText
    from specdec.heads.training.text_export import ExportLayout

_KIND = "eagle3"  # of the heads that are trained
_REPORT_SECONDS, _REPORT_SHARE, _MOST_SHARE = 60.0, 0.03, 0.25  # of the time, for decoding with the new head
_MOST_LOADING = 0.1  # of the time; a longer loading adds to it


@with_option_groups
def train(
    model: TrainedModel,
    out: Annotated[
        Path | None,
        typer.Option(help="the head's folder (default: in the cache, where auto finds it)", show_default=False),
    ] = None,
    run: TrainingRun = USUAL_RUN,
    vocabulary: Annotated[
        int, typer.Option(min=1, help="size of the draft vocabulary: the head drafts only the most frequent tokens")
    ] = 8192,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="LAYOUT FILE",
            show_default=False,
            help="write the text as training data for specforge or speculators instead of training a head",
        ),
    ] = None,
    has_report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report", help="measure the head, and write report.html into its folder: curves and speeds"
        ),
    ] = True,
    kind: Annotated[str, typer.Option(hidden=True)] = _KIND,
) -> None:
    """Train a draft head on text that the model writes itself.

    A draft head is a small network that proposes tokens from the model's hidden states; the model verifies several of
    them in one forward pass, so its text doesn't change.

    No data is needed. After the first seconds a plan is printed. The text and the best head so far, by tokens per step
    on held-out text, are saved in the head's folder. Ctrl-C ends the run and keeps that head. --resume with the same
    options continues a run that was interrupted or killed; the time that it had spent counts.
    """
    began = time.monotonic()
    with before_anything_runs():
        _check_kind(kind)
        run.check(model, out)
        from specdec.heads.training import HeadSettings, Watch, train_head, write_own_text

        exported = None if export is None else (_layout(export[0]), export[1])
        check_outputs(exported and exported[1])
        loaded, tokenizer, tokens = run.load(model)
    seconds = min(max(_REPORT_SECONDS, _REPORT_SHARE * 60 * run.minutes), _MOST_SHARE * 60 * run.minutes)
    loading = min(time.monotonic() - began, _MOST_LOADING * 60 * run.minutes)
    settings = HeadSettings(
        minutes=run.minutes,
        reserved_seconds=loading + (seconds if has_report and export is None else 0.0),
        draft_vocab_size=vocabulary,
        seed=run.seed,
    )
    console = Console(highlight=False, markup=False)
    missing = "a head was trained" if exported is None else f"{exported[1]} was written"
    with training_progress(out, missing, run.resume) as show:
        watch = Watch(lambda plan: console.print(*plan.lines(), sep="\n", soft_wrap=True), show)
        if exported is not None:
            text, script = write_own_text(loaded, tokenizer, out, settings, tokens, run.resume, watch)
            console.print(_export(*exported, text, script, tokenizer), soft_wrap=True)
            return
        head = train_head(loaded, tokenizer, out, settings, tokens, run.resume, watch)
    commands = _Commands.of(model, settings, out, run)
    _print(console, head, commands)
    measured = _report(console, head, loaded, tokenizer, commands, seconds) if has_report else None
    if out is None:
        console.print(_verdict(head, measured, commands), soft_wrap=True)
    if head.is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def refuse_consistency() -> None:
    """Removed: train a draft head instead, with `specdec train head`."""
    with before_anything_runs():
        raise RequestError(
            "`specdec train consistency` was removed, as seven runs gained nothing by it (measured in "
            "benchmarks/notebook/2026-11-26-consistency.md): use `specdec train head`, which trains a draft head"
        )


def _check_kind(kind: str) -> None:
    """Refuse kinds of heads that aren't trained."""
    if kind != _KIND:
        raise RequestError(
            f"--kind {kind}: only EAGLE-3 heads are trained, with 2.22 tokens per step where Medusa's had 1.70 and "
            "P-EAGLE's 1.60 (equal time on an H200, trees of 8); published folders of these kinds are still read"
        )


def _layout(name: str) -> "ExportLayout":
    from specdec.heads.training.text_export import ExportLayout

    try:
        return ExportLayout(name)
    except ValueError:
        raise RequestError(f"--export {name}: give specforge or speculators") from None


def _export(layout: "ExportLayout", path: Path, text: "TrainingText", script: "Script", tokenizer: Any) -> str:
    """Write the model's text as a file; return what was written."""
    from specdec.heads.training.text_export import write_text

    write_text(path, layout, text, script, tokenizer)
    documents = "1 document" if len(text) == 1 else f"{len(text):,} documents"
    return f"{path}: {documents}, {text.num_answer_tokens:,} answer tokens, for {layout.value}"


@dataclass(frozen=True, slots=True)
class _Commands:
    """Commands for a head that was trained with these options; None leaves one out."""

    options: Mapping[str, object]

    @classmethod
    def of(cls, model: str, settings: "HeadSettings", out: Path | None, run: TrainingRun) -> "_Commands":
        options = {
            "model": model,
            "minutes": f"{run.minutes:g}",
            "out": out,
            "device": run.device,
            "dtype": run.dtype,
            "vocabulary": settings.draft_vocab_size,
            "prompts": run.prompts,
            "seed": run.seed,
            "threads": run.threads,
        }
        return cls(options)

    def train(self) -> str:
        return f"specdec train head {self._with(*self.options)}"

    def compare(self, head: "TrainedHead") -> str:
        """Return the command that compares decoding with and without the head."""
        strategies = " ".join(["auto:head=false", *self.strategies(head)])
        return f"specdec compare {strategies} {self.model()}"

    def model(self) -> str:
        """Return the options that choose the model."""
        return self._with("model", "device", "dtype")

    def strategies(self, head: "TrainedHead") -> list[str]:
        """Return ``auto`` with the head, and the head alone; in the cache folder they find it themselves."""
        if self.options["out"] is None:
            return [f"auto+{_KIND}", _KIND]
        return [shlex.quote(f"{name}:head={head.folder}") for name in (f"auto+{_KIND}", _KIND)]

    def _with(self, *names: str) -> str:
        given = {name: self.options[name] for name in names if self.options[name] is not None}
        return shlex.join(word for name, value in given.items() for word in (f"--{name}", str(value)))


def _print(console: Console, head: "TrainedHead", commands: _Commands) -> None:
    shown = head.acceptance
    depths = ", ".join(f"{share:.0%}" for share in shown.chain)
    ended = "interrupted; the best head so far" if head.is_interrupted else "the best head"
    console.print(
        f"{ended}: {shown.tokens_per_step:.2f} tokens per step (chain of {len(shown.chain)} draft tokens, held-out "
        f"text); accepted by depth: {depths}",
        soft_wrap=True,
    )
    if head.is_interrupted:
        console.print(f"go on with the training in {head.folder}: the same command with --resume", soft_wrap=True)
    if commands.options["out"] is not None:
        console.print(f"use it: --proposer {commands.strategies(head)[0]}", soft_wrap=True)
    console.print(f"compare: {commands.compare(head)}", soft_wrap=True)


def _verdict(head: "TrainedHead", measured: "tuple[str, Speeds] | None", commands: _Commands) -> str:
    """Return in words whether ``auto`` drafts with a head of the cache folder, after noting its speeds."""
    from specdec.heads.head_facts import note_speeds
    from specdec.heads.training.progress import next_measured, rounded

    if measured is None:
        return f"auto drafts with it once it is measured to be faster: specdec heads measure {commands.model()}"
    setup, speeds = measured
    note_speeds(head.folder, str(commands.options["model"]), setup, speeds)
    following = None if speeds.is_faster else next_measured(head.num_answer_tokens)
    if following is None:
        return f"{verdict(setup, speeds)}. For other backends and dtypes: specdec heads measure"
    return (
        f"{verdict(setup, speeds)}. More text brings more: this head was trained on "
        f"{rounded(head.num_answer_tokens, 2)} answer tokens, and SmolLM2's head reached {following[1]:.1f} tokens per "
        f"step with {rounded(following[0], 2)}: the same command with more --minutes and --resume goes on with its text"
    )


def _report(
    console: Console, head: "TrainedHead", model: Any, tokenizer: Any, commands: _Commands, seconds: float
) -> "tuple[str, Speeds] | None":
    """Measure the head and write the report page; return the setup and the speeds, None if it couldn't be measured.

    What keeps it from being measured or written is printed, as the head is there all the same.
    """
    measured = None
    try:
        from specdec.apps.pictures import training_report

        training_report.check_training_report()
        comparison = None
        if not head.is_interrupted:
            with status("measuring the head on this machine"):
                try:
                    comparison, setup = training_report.measure_head(
                        model, tokenizer, head.folder, seconds, backend="hf"
                    )
                    measured = setup, training_report.speeds_of(comparison)
                except SpecdecError as error:
                    console.print(f"no speeds in the report: {error}", soft_wrap=True)
        path = head.folder / "report.html"
        facts = {"model": str(commands.options["model"]), "command": commands.train()}
        training_report.write_training_report(path, head, comparison, facts, commands.compare(head))
    except SpecdecError as error:
        console.print(f"no report page: {error}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print("no report page: interrupted", soft_wrap=True)
    else:
        console.print(f"report: {path}", soft_wrap=True)
    return measured
