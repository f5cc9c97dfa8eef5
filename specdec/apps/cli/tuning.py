"""The command that searches a strategy's options."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.figures_table import FiguresTable
from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.options import (
    EXIT_ERROR,
    NewTokens,
    OrderSeed,
    Temperature,
    Threads,
    before_anything_runs,
    check_outputs,
    use_threads,
)
from specdec.apps.cli.progress import settings_tried, status
from specdec.apps.cli.prompt_set import BUILT_IN_CHATS, ChatPromptSet, say_if_few
from specdec.apps.cli.ranked_choice import takes_model
from specdec.apps.cli.tables import identity_lines, speed_table
from specdec.errors import RequestError, plural
from specdec.machine.extras import needs

if TYPE_CHECKING:
    from specdec.apps.comparison.tune import Tuning

_MOST_TRIALS_SHOWN = 10


@takes_model
def tune(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    strategy: Annotated[str, typer.Argument(help="a strategy; its given options are fixed")],
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE,VALUE,…: values to try; may be repeated")] = None,
    minutes: Annotated[float, typer.Option(help="duration of the search")] = 5.0,
    choice: ModelChoice = USUAL,
    prompts: ChatPromptSet = BUILT_IN_CHATS,
    max_new_tokens: NewTokens = 64,
    temperature: Temperature = 0.0,
    seed: OrderSeed = 0,
    threads: Threads = None,
    plot: Annotated[Path | None, typer.Option(help="draw the trade-off, as .svg or .png")] = None,
) -> None:
    """Find a strategy's fastest options for this machine and model.

    They are printed in the form for --proposer.
    The cost of a pass by its number of nodes is measured first. A short run of each setting measures its tokens per
    step, and only the settings predicted to be fastest are compared with plain decoding in full. A setting is called
    best only if its whole interval over plain decoding is above 1.
    """
    with before_anything_runs():
        if not 0 < minutes < math.inf:
            raise RequestError(f"--minutes {minutes:g}: give more than 0, and a finite number")
        chosen = prompts.read()
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        choice.check_early(strategy, settings=options)
        from specdec.apps.comparison.options import ComparisonOptions
        from specdec.apps.comparison.tune import Tuner, search_space

        space = dict(map(_values, option)) if option else None
        options |= {**choice.stages, "chat": prompts.chat}
        setting = search_space(strategy, space, minutes).first
        ComparisonOptions.make(options)
        _check_ready(plot)
        say_if_few(chosen)
        use_threads(threads)
        loaded, tokenizer = choice.load(setting, is_logged=True)
        with status("trying the model out", is_logged=True):
            tuner = Tuner(loaded, strategy, chosen, tokenizer=tokenizer, space=space, minutes=minutes, **options)
    with settings_tried() as tell:
        tuning = tuner.run(lambda trial: tell(trial.strategy))
    _print(tuning, tokenizer)
    if (num_used := len(tuning.comparison.prompts)) < len(chosen):
        used = f"the comparison used {num_used} of {len(chosen)} prompts, spread evenly: more --minutes use more"
        Console(highlight=False, markup=False).print(used, soft_wrap=True)
    if plot is not None:
        from specdec.apps.comparison.figures.trade_off import save_trade_off

        save_trade_off(plot, tuning)
    if tuning.comparison.defects or tuning.comparison.failure is not None:
        raise typer.Exit(EXIT_ERROR)


def _print(tuning: "Tuning", tokenizer: Any) -> None:
    from specdec.apps.comparison.sentences import found_by_search, numerics_used

    console = Console(highlight=False, markup=False)
    console.print(_trial_table(tuning))
    console.print()
    console.print(speed_table(tuning.comparison))
    for line in (numerics_used(tuning.comparison), *identity_lines(tuning.comparison, tokenizer)):
        console.print(line, soft_wrap=True)
    console.print()
    failed = [f"error: {tuning.comparison.failure}"] if tuning.comparison.failure is not None else []
    for line in (*found_by_search(tuning), *failed):
        console.print(line, soft_wrap=True)


def _values(given: str) -> tuple[str, list[Any]]:
    """Parse ``NAME=VALUE,VALUE,…``; values are read like a strategy's options."""
    from specdec.plugins.options import read_value

    name, equals, values = given.partition("=")
    if not equals or not name or not values:
        raise RequestError(f"--option {given!r} is not of the form NAME=VALUE,VALUE,…")
    return name, [read_value(value) for value in values.split(",")]


def _check_ready(path: Path | None) -> None:
    needs("scipy.stats", "compare", "a search")
    if path is not None:
        needs("matplotlib", "compare", "a plot")
        if path.suffix not in {".svg", ".png"}:
            raise RequestError(f"--plot {path}: give a file that ends in .svg or .png")
    check_outputs(path)


def _trial_table(tuning: "Tuning") -> FiguresTable:
    """Return the table of screened settings, the fastest first."""
    heading = f"{plural(len(tuning.trials), 'setting')} screened; predicted fastest"
    table = FiguresTable(heading, "tokens/step", "nodes/step", "ms/step", "tokens/s")
    for trial in tuning.trials[:_MOST_TRIALS_SHOWN]:
        table.add_row(
            trial.strategy,
            f"{trial.tokens_per_step:.2f}",
            f"{trial.nodes_per_step:.1f}",
            f"{1000 * trial.seconds_per_step(tuning.costs):.2f}",
            f"{trial.tokens_per_second(tuning.costs):.0f}",
        )
    return table
