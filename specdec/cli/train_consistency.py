"""The command that tunes a model for Jacobi decoding."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdec.cli.option_groups import with_option_groups
from specdec.cli.options import EXIT_INTERRUPTED, before_anything_runs, quieten_transformers
from specdec.cli.training_options import USUAL_RUN, TrainedModel, TrainingRun
from specdec.cli.training_progress import training_progress
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.training import TunedModel


@with_option_groups
def train_consistency(
    model: TrainedModel,
    out: Annotated[Path, typer.Option(help="the new model's folder")],
    run: TrainingRun = USUAL_RUN,
    block_size: Annotated[int, typer.Option(min=2, help="tokens that Jacobi decoding guesses per step")] = 8,
    learning_rate: Annotated[float, typer.Option(help="AdamW's learning rate; lower it for larger models")] = 1e-4,
    ar_weight: Annotated[
        float, typer.Option(min=0, help="weight of the loss on the original's text; less gives fewer steps")
    ] = 10.0,
    max_loss_increase: Annotated[
        float, typer.Option(min=0, help="largest rise of the loss on held-out text, in nats per token")
    ] = 0.1,
) -> None:
    """Tune a copy of a model so that Jacobi decoding is faster.

    The copy is another model, which writes other texts; the original isn't changed. No data is needed: the copy is
    trained on text that the original writes. It is evaluated every few minutes, and the version with the most tokens
    per step is kept, among those whose loss on held-out text has risen by --max-loss-increase at most. --resume with
    the same options continues a run that was interrupted or killed.
    """
    with before_anything_runs():
        run.check(model, out)
        if not 0 < learning_rate < math.inf:
            raise RequestError(f"--learning-rate {learning_rate:g}: give more than 0, and a finite number")
        if not math.isfinite(ar_weight):
            raise RequestError(f"--ar-weight {ar_weight:g}: give at least 0, and a finite number")
        if math.isnan(max_loss_increase):
            raise RequestError("--max-loss-increase nan: give a number of at least 0")
        from specdec.training import ConsistencySettings, Watch
        from specdec.training import train_consistency as train

        loaded, tokenizer, tokens = run.load(model)
        quieten_transformers()  # the progress of saving
    settings = ConsistencySettings(
        minutes=run.minutes,
        block_size=block_size,
        learning_rate=learning_rate,
        ar_weight=ar_weight,
        max_loss_increase=max_loss_increase,
        seed=run.seed,
    )
    console = Console(highlight=False, markup=False)
    with training_progress(out, "there was a better model", run.resume) as show:
        watch = Watch(lambda plan: console.print(*plan.lines(), sep="\n", soft_wrap=True), show)
        tuned = train(loaded, tokenizer, out, settings, tokens, run.resume, watch)
    _print(console, tuned, model, settings.block_size)
    if tuned.is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _print(console: Console, tuned: "TunedModel", model: str, block_size: int) -> None:
    before, after, folder = tuned.before, tuned.after, shlex.quote(str(tuned.folder))
    strategies = f"jacobi:n={block_size} lookahead"
    lines = [
        f"Jacobi decoding with {block_size} guesses: {before.tokens_per_step:.2f} tokens per step before, "
        f"{after.tokens_per_step:.2f} after, on held-out text; loss on the original's text {before.loss:.3f} before, "
        f"{after.loss:.3f} after",
        f"{folder} has another model, which writes other texts than {model}: compare their quality on your own tasks",
        f"use it: specdec generate --model {folder} --proposer jacobi:n={block_size} …",
        f"compare: specdec compare {strategies} --model {folder}",
    ]
    if tuned.is_interrupted:
        lines.insert(0, f"interrupted; {folder} has the best model so far: the same command with --resume goes on")
    console.print(*lines, sep="\n", soft_wrap=True)
