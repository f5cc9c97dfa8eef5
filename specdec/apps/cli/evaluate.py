"""Commands that compare strategies, and report on comparisons."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.option_groups import OptionGroup
from specdec.apps.cli.options import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    NewTokens,
    OrderSeed,
    Threads,
    Verifier,
    before_anything_runs,
    check_outputs,
    echo_json,
    use_threads,
    write_text,
)
from specdec.apps.cli.progress import measured, status
from specdec.apps.cli.prompt_set import BUILT_IN_CHATS, ChatPromptSet, say_if_few
from specdec.apps.cli.ranked_choice import takes_model
from specdec.apps.cli.tables import category_tables, identity_lines, speed_table, step_table
from specdec.errors import RequestError
from specdec.machine.extras import needs

if TYPE_CHECKING:
    from specdec.apps.comparison import Comparison, ComparisonSession, EvaluationPrompt

Csv = Annotated[Path | None, typer.Option(help="write a line per run as CSV")]
AsJson = Annotated[bool, typer.Option("--json", help="print the figures as JSON")]


@dataclass(frozen=True, slots=True)
class Runs(OptionGroup):
    """The settings of a comparison's runs."""

    max_new_tokens: NewTokens = 64
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="0 takes the most likely token; may be repeated (default: 0)", show_default=False),
    ] = None
    verifier: Verifier = "match"
    repeats: Annotated[int, typer.Option(min=1, help="number of times that each strategy decodes each prompt")] = 3
    seed: OrderSeed = 0
    warm: Annotated[
        bool, typer.Option("--warm", help="add a row for each strategy that learns across requests, see above")
    ] = False

    def by_temperature(self) -> dict[float, dict[str, Any]]:
        """Return a comparison's options for each temperature."""
        common = {name: value for name, value in asdict(self).items() if name != "temperature"}
        return {each: {**common, "temperature": each} for each in self.temperature or (0.0,)}


@dataclass(frozen=True, slots=True)
class Outputs(OptionGroup):
    """The forms in which a comparison is shown and written."""

    run_file: Annotated[
        Path | None, typer.Option("--run", help="save every run in this file; an existing file is continued")
    ] = None
    report: Annotated[Path | None, typer.Option(help="write an HTML report")] = None
    csv: Csv = None
    as_json: AsJson = False

    def at(self, temperature: float) -> "Outputs":
        """Return the outputs of one temperature of several: its files have -tTEMPERATURE added to their names."""

        def named(path: Path | None) -> Path | None:
            return path and path.with_stem(f"{path.stem}-t{temperature:g}")

        return replace(self, run_file=named(self.run_file), csv=named(self.csv))


@takes_model
def compare(
    strategies: Annotated[list[str], typer.Argument(help="strategies (see `specdec plugins`), or NAME=STRATEGY")],
    choice: ModelChoice = USUAL,
    prompts: ChatPromptSet = BUILT_IN_CHATS,
    runs: Runs = Runs(),
    threads: Threads = None,
    outputs: Outputs = Outputs(),
) -> None:
    """Compare strategies: speed, tokens per step, equal texts.

    For example: specdec compare auto prompt_lookup --model smollm2 --report report.html

    Plain decoding, without drafts, is always added. Speed-ups are over plain decoding in fast numerics, with 95 %
    bootstrap intervals over prompts; texts are compared with plain decoding in the strategies' own numerics. Runs are
    interleaved in random order and paired by prompt.

    A strategy that learns across requests starts each repeat with nothing learnt; --warm adds a row in which it has
    decoded every prompt once before.

    Speed-ups are also shown by category if the prompts have several, and by task for Spec-Bench's categories. With
    several temperatures, --run and --csv write a file for each, with -tTEMPERATURE added to its name, and --json prints
    a line for each.

    Ctrl-C ends the comparison early and shows the figures so far. Exit code 1 if a text differs from plain decoding's
    by more than a numeric tie: two tokens whose scores differ by less than rounding.
    """
    stages = {**choice.stages, "chat": prompts.chat}
    given = {temperature: {**options, **stages} for temperature, options in runs.by_temperature().items()}
    files = [outputs.at(each) if len(given) > 1 else outputs for each in given]
    with before_anything_runs():
        chosen = prompts.read()
        for options in runs.by_temperature().values():
            settings = {name: options[name] for name in ("max_new_tokens", "temperature", "seed")}
            choice.check_early(*(_split(each)[1] for each in strategies), verifier=runs.verifier, settings=settings)
        check_outputs(outputs.report, *(path for each in files for path in (each.csv, each.run_file)))
        _check_run_files(*(each.run_file for each in files))
        named = _named(strategies)
        from specdec.apps.comparison.options import ComparisonOptions
        from specdec.apps.comparison.runfile import RunFile

        for options in given.values():  # before seconds go into loading
            ComparisonOptions.make(options)
        _check_ready(outputs.report, *(each.csv for each in files))
        say_if_few(chosen)
        use_threads(threads)
        loaded = choice.load(*named.values(), is_logged=True)
        sessions = [_session(loaded, named, chosen, options) for options in given.values()]
        for each, session in zip(files, sessions, strict=True):
            if each.run_file is not None:  # it may be another comparison's
                RunFile(each.run_file, session.plan).close()
    with ExitStack() as opened:
        for session in sessions:
            opened.enter_context(session)
        comparisons = _compared(list(given), sessions, files)
        if outputs.report is not None:
            _write_report(outputs.report, comparisons, sessions[0])
    _leave(comparisons, is_interrupted=len(comparisons) < len(sessions))


def _compared(
    temperatures: Sequence[float], sessions: "Sequence[ComparisonSession]", outputs: Sequence[Outputs]
) -> "list[Comparison]":
    """Measure and show one comparison after the other; an incomplete one is the last."""
    comparisons: list[Comparison] = []
    for temperature, session, own in zip(temperatures, sessions, outputs, strict=True):
        try:
            comparisons.append(measured(session, own.run_file))
        except KeyboardInterrupt:
            if not comparisons:
                raise
            break
        if len(sessions) > 1 and not own.as_json:
            typer.echo(f"temperature {temperature:g}")
        _show(comparisons[-1], session.tokenizer, own)
        if not comparisons[-1].is_complete:
            break
    return comparisons


def report(
    run_files: Annotated[list[Path], typer.Argument(help="run files of one comparison")],
    out: Annotated[Path | None, typer.Option(help="write an HTML report")] = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Merge the run files of one comparison, and show the result."""
    from specdec.apps.comparison import Comparison
    from specdec.apps.comparison.runfile import merge

    with before_anything_runs():
        _check_ready(out, csv)
        comparison = Comparison(*merge(run_files))
    _show(comparison, None, Outputs(csv=csv, as_json=as_json))
    if out is not None:
        _write_report(out, [comparison], None)
    if comparison.defects:
        raise typer.Exit(EXIT_ERROR)


def _named(strategies: list[str]) -> dict[str, Any]:
    from specdec.plugins.registry import load_plugins

    registry, named = load_plugins(), dict[str, Any]()
    for given in strategies:
        name, strategy = _split(given)
        if name in named:
            raise RequestError(f"two strategies are called {name!r}: give one of them a name, as NAME={strategy}")
        named[name] = registry.make("proposers", strategy)
    return named


def _session(
    loaded: tuple[Any, Any], named: dict[str, Any], prompts: list["EvaluationPrompt"], options: dict[str, Any]
) -> "ComparisonSession":
    """Return the session; raises all errors that are possible before a run."""
    from specdec.apps.comparison import ComparisonSession

    model, tokenizer = loaded
    with status("trying the model out", is_logged=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is lossy")  # the tables say so
        return ComparisonSession(model, named, prompts, tokenizer=tokenizer, **options)


def _split(given: str) -> tuple[str, str]:
    """Split ``NAME=STRATEGY``; the default name is the strategy. An option's equals sign comes after a colon."""
    name, equals, strategy = given.partition("=")
    return (name, strategy) if equals and ":" not in name else (given, given)


def _show(comparison: "Comparison", tokenizer: Any, outputs: Outputs) -> None:
    if outputs.as_json:
        echo_json(comparison.to_json())
    else:
        _print(comparison, tokenizer)
    if outputs.csv is not None:
        write_text(outputs.csv, comparison.to_csv())


def _print(comparison: "Comparison", tokenizer: Any) -> None:
    """Print tables, the verdict, and each text that differs from plain decoding's."""
    from specdec.apps.comparison.sentences import numerics_used, verdict, warm_strategies

    console = Console(highlight=False, markup=False)
    tables = (speed_table(comparison), step_table(comparison), *category_tables(comparison, console.width))
    for table in tables:
        console.print(table)
        console.print()
    stopped = [] if comparison.is_complete else ["Stopped early: these are the figures so far."]
    stopped += [f"error: {comparison.failure}"] if comparison.failure is not None else []
    remarks = (*identity_lines(comparison, tokenizer), numerics_used(comparison), warm_strategies(comparison))
    for line in filter(None, (verdict(comparison), *stopped, *remarks)):
        console.print(line, soft_wrap=True)


def _check_ready(report: Path | None, *others: Path | None) -> None:
    needs("scipy.stats", "compare", "a comparison")
    for module in ("jinja2", "matplotlib") if report is not None else ():
        needs(module, "compare", "a report")
    if report is not None and report.suffix.lower() not in {".html", ".htm"} and not _is_special(report):
        raise RequestError(f"the report {report} is a web page: give a file that ends in .html")
    check_outputs(report, *others)


def _is_special(path: Path) -> bool:
    """Return True for a pipe, a terminal and the like, such as /dev/stdout, also where that leads to a file."""
    return path.exists() and (path.is_symlink() or not path.is_file())


def _check_run_files(*paths: Path | None) -> None:
    """Raise RequestError for a file that can't be written, or isn't a run file."""
    from specdec.apps.comparison.runfile import check_run_file

    check_outputs(*paths)
    for path in filter(None, paths):
        check_run_file(path)


def _write_report(path: Path, comparisons: list["Comparison"], session: "ComparisonSession | None") -> None:
    from specdec.apps.comparison.report import write_report

    decode = session.tokenizer.decode if session is not None and session.tokenizer else None
    costs = None  # the report leaves the figure out
    if session is not None and all(comparison.is_complete for comparison in comparisons):  # not after Ctrl-C
        doing = "measuring the cost of passes for the report"
        with status(doing, is_logged=True), suppress(KeyboardInterrupt):
            costs = session.costs()
    write_report(path, comparisons, decode=decode, costs=costs)


def _leave(comparisons: list["Comparison"], is_interrupted: bool) -> None:
    """Exit code 1 for a strategy that failed or wrote another text, ties aside, 130 for an interrupt."""
    if any(comparison.defects or comparison.failure for comparison in comparisons):
        raise typer.Exit(EXIT_ERROR)
    if is_interrupted or not all(comparison.is_complete for comparison in comparisons):
        raise typer.Exit(EXIT_INTERRUPTED)
