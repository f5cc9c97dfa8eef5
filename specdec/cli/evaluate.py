"""Commands that compare strategies, and report on comparisons."""

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specdec.cli.figures_table import FiguresTable
from specdec.cli.model_choice import USUAL, ModelChoice, takes_model
from specdec.cli.options import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    Category,
    Chat,
    NewTokens,
    OrderSeed,
    PerCategory,
    Prompts,
    Temperature,
    Threads,
    Verifier,
    before_anything_runs,
    check_outputs,
    read_prompts,
    use_threads,
    write_text,
)
from specdec.cli.progress import measured, status
from specdec.cli.tables import bench_table, spec_bench_table, speed_table, step_table, told_texts
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.comparison import Comparison, ComparisonSession, EvaluationPrompt

_USUAL = ["lookahead", "prompt_lookup", "jacobi"]

Strategies = Annotated[list[str], typer.Argument(help="strategies (see `specdec plugins`), or NAME=STRATEGY")]
Repeats = Annotated[int, typer.Option(help="how often each strategy decodes each prompt")]
RunFile = Annotated[
    Path | None, typer.Option("--run", help="append every run to this file, and skip runs that it contains")
]
Report = Annotated[Path | None, typer.Option(help="write an HTML report")]
Csv = Annotated[Path | None, typer.Option(help="write a line per run as CSV")]
Warm = Annotated[bool, typer.Option("--warm", help="add rows of strategies that retain their memory between repeats")]
AsJson = Annotated[bool, typer.Option("--json", help="print the figures as JSON")]


@takes_model
def compare(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    strategies: Strategies,
    choice: ModelChoice = USUAL,
    prompts: Prompts = None,
    chat: Chat = None,
    category: Category = None,
    per_category: PerCategory = None,
    max_new_tokens: NewTokens = 64,
    temperature: Temperature = 0.0,
    verifier: Verifier = "match",
    repeats: Repeats = 3,
    seed: OrderSeed = 0,
    warm: Warm = False,
    threads: Threads = None,
    run_file: RunFile = None,
    report: Report = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Compare strategies: speed, tokens per step, same texts.

    Runs are interleaved in random order and paired by prompt; intervals are 95 % bootstrap intervals over prompts.
    Speed-ups are over ordinary plain decoding, in fast numerics; texts are compared with it in the strategies' own.
    Strategies that learn across requests forget what they remember before each repeat; --warm adds rows that don't
    and have decoded every prompt once before.
    Ctrl-C ends it early with the figures of what was run. Exit code 1 if a text differs from plain decoding's by more
    than a numeric tie.
    """
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature}
    settings |= {"verifier": verifier, **choice.stages, "repeats": repeats, "seed": seed}
    with before_anything_runs():
        _check_run_files(run_file)
        chosen = read_prompts(prompts, category, per_category)
        named = _named(strategies)
        _check_options(settings)
        _check_ready(report, csv)
        use_threads(threads)
        loaded = choice.load(*named.values())
        session = _session(loaded, named, chosen, settings | {"warm": warm, "chat": chat})
        _check_run_file(run_file, session)
    with session:
        comparison = measured(session, run_file)
        if as_json:
            typer.echo(json.dumps(comparison.to_json()))
        else:
            _print(comparison, session.tokenizer, speed_table, step_table)
        if csv is not None:
            write_text(csv, comparison.to_csv())
        if report is not None:
            _write_report(report, [comparison], session)
    _leave([comparison])


@takes_model
def bench(  # noqa: PLR0913, PLR0917 - as above
    strategies: Annotated[
        list[str] | None, typer.Argument(help="as for compare; without any, three built-in ones")
    ] = None,
    choice: ModelChoice = USUAL,
    prompts: Prompts = None,
    chat: Chat = None,
    category: Category = None,
    per_category: PerCategory = None,
    max_new_tokens: NewTokens = 64,
    temperature: Annotated[list[float] | None, typer.Option(help="may be repeated; 0 without it")] = None,
    verifier: Verifier = "match",
    repeats: Repeats = 1,
    seed: OrderSeed = 0,
    threads: Threads = None,
    run_file: RunFile = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Compare strategies by category, in Spec-Bench's layout.

    It is one model's whole table over categories, strategies and temperatures.
    Each cell is the speed-up over ordinary plain decoding, in fast numerics; mean accepted counts the tokens of a step,
    the bonus token included. Prompts with Spec-Bench's categories have its own table as well, by task. A run file is
    kept for each temperature, with -tTEMPERATURE added to its name.
    """
    temperatures = temperature or [0.0]
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "verifier": verifier}
    settings |= {**choice.stages, "repeats": repeats, "seed": seed}
    files = [run_file and run_file.with_stem(f"{run_file.stem}-t{t:g}") for t in temperatures]
    with before_anything_runs():
        _check_run_files(*files)
        chosen = read_prompts(prompts, category, per_category)
        named = _named(strategies or _USUAL)
        for each in temperatures:
            _check_options(settings | {"temperature": each})
        _check_ready(report)
        use_threads(threads)
        loaded = choice.load(*named.values())
        common = settings | {"chat": chat}
        sessions = [_session(loaded, named, chosen, common | {"temperature": t}) for t in temperatures]
        for file, session in zip(files, sessions, strict=True):
            _check_run_file(file, session)
    comparisons = _measured_by_temperature(list(zip(temperatures, sessions, strict=True)), files, prints=not as_json)
    if as_json:
        typer.echo(json.dumps([comparison.to_json() for comparison in comparisons]))
    if report is not None:
        _write_report(report, comparisons, sessions[0])
    _leave(comparisons)


def _measured_by_temperature(
    sessions: "Sequence[tuple[float, ComparisonSession]]", files: Sequence[Path | None], prints: bool
) -> "list[Comparison]":
    """Run the sessions one after the other; an interrupted one is the last."""
    comparisons: list[Comparison] = []
    for (temperature, session), file in zip(sessions, files, strict=True):
        with suppress(KeyboardInterrupt) if comparisons else nullcontext(), session:
            comparisons.append(measured(session, file))
            if prints:
                typer.echo(f"temperature {temperature:g}")
                tables = (partial(made, width=Console().width) for made in (bench_table, spec_bench_table))
                _print(comparisons[-1], session.tokenizer, *tables)
        if len(comparisons) < len(sessions) and not comparisons[-1].is_complete:
            break
    return comparisons


def report(
    run_files: Annotated[list[Path], typer.Argument(help="run files of one comparison")],
    out: Annotated[Path | None, typer.Option(help="write an HTML report")] = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Merge run files of one comparison, and show the result."""
    from specdec.comparison import Comparison
    from specdec.comparison.runfile import merge

    with before_anything_runs():
        _check_ready(out, csv)
        comparison = Comparison(*merge(run_files))
    if as_json:
        typer.echo(json.dumps(comparison.to_json()))
    else:
        _print(comparison, None, speed_table, step_table)
    if csv is not None:
        write_text(csv, comparison.to_csv())
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
    from specdec.comparison import ComparisonSession

    model, tokenizer = loaded
    with status("trying the model out"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is lossy")  # the tables say so
        return ComparisonSession(model, named, prompts, tokenizer=tokenizer, **options)


def _split(given: str) -> tuple[str, str]:
    """Split ``NAME=STRATEGY``; the default name is the strategy. An option's equals sign comes after a colon."""
    name, equals, strategy = given.partition("=")
    return (name, strategy) if equals and ":" not in name else (given, given)


def _print(
    comparison: "Comparison", tokenizer: Any, *tables: Callable[["Comparison"], Table | FiguresTable | None]
) -> None:
    """Print tables, the verdict, and each text that differs from plain decoding's."""
    from specdec.comparison.sentences import numerics_used, verdict, warm_strategies

    console = Console(highlight=False, markup=False)
    for made in tables:
        if (table := made(comparison)) is not None:
            console.print(table)
            console.print()
    stopped = [] if comparison.is_complete else ["Stopped early: these are the figures so far."]
    stopped += [f"error: {comparison.failure}"] if comparison.failure is not None else []
    told = (*told_texts(comparison, tokenizer), numerics_used(comparison), warm_strategies(comparison))
    for line in filter(None, (verdict(comparison), *stopped, *told)):
        console.print(line, soft_wrap=True)


def _check_ready(report: Path | None, *others: Path | None) -> None:
    from specdec.comparison.extras import needs

    for module in ("scipy.stats", *(("jinja2", "matplotlib") if report is not None else ())):
        needs(module)
    check_outputs(report, *others)


def _check_options(options: dict[str, Any]) -> None:
    """Raise SpecdecError for options that ``_session`` would refuse, before loading, which takes seconds."""
    from specdec.comparison.contenders import check_options

    check_options(**options)


def _check_run_files(*paths: Path | None) -> None:
    """Raise RequestError for a file that can't be written, or isn't a run file."""
    from specdec.comparison.runfile import check_run_file

    check_outputs(*paths)
    for path in filter(None, paths):
        check_run_file(path)


def _check_run_file(path: Path | None, session: "ComparisonSession") -> None:
    """Raise RequestError for a run file of another comparison."""
    from specdec.comparison.runfile import RunFile

    if path is not None:
        RunFile(path, session.plan).close()


def _write_report(path: Path, comparisons: list["Comparison"], session: "ComparisonSession | None") -> None:
    from specdec.comparison.report import write_report

    if session is None:
        write_report(path, comparisons, decode=None)
        return
    is_complete = all(comparison.is_complete for comparison in comparisons)
    costs = session.costs() if is_complete else None  # after Ctrl-C, don't measure more
    write_report(path, comparisons, decode=session.tokenizer.decode if session.tokenizer else None, costs=costs)


def _leave(comparisons: list["Comparison"]) -> None:
    """Exit with 1 if a strategy failed or wrote another text, except for ties, and with 130 after an interrupt."""
    if any(comparison.defects or comparison.failure for comparison in comparisons):
        raise typer.Exit(EXIT_ERROR)
    if not all(comparison.is_complete for comparison in comparisons):
        raise typer.Exit(EXIT_INTERRUPTED)
