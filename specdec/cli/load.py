"""The command that puts load on a server and says what its clients waited."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.cli.figures_table import FiguresTable
from specdec.cli.options import (
    EXIT_ERROR,
    AsJson,
    Category,
    PerCategory,
    Prompts,
    before_anything_runs,
    check_outputs,
    read_prompts,
    write_text,
)
from specdec.cli.progress import counted
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.loadtest.figures import Goal, Spread, Summary


def bench_serve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    url: Annotated[str, typer.Argument(help="an OpenAI-compatible server, such as http://localhost:8000")],
    rate: Annotated[
        list[float] | None, typer.Option(help="requests a second, at random times; may be repeated")
    ] = None,
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="requests at a time instead; may be repeated")
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, help="of each rate")] = 50,
    model: Annotated[str | None, typer.Option(help="the model's name; the server's first without it")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="send prompts as chat messages")] = False,
    prompts: Prompts = None,
    category: Category = None,
    per_category: PerCategory = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token")] = 0.0,
    field: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a further field of each body, such as proposer=off")
    ] = None,
    api_key: Annotated[str, typer.Option(envvar="SPECDEC_API_KEY", help="a key that the server wants")] = "",
    good_first: Annotated[float, typer.Option(help="seconds to the first text that are still good")] = 2.0,
    good_token: Annotated[float, typer.Option(help="seconds per later token that still count as good")] = 0.2,
    seed: Annotated[int, typer.Option(help="of the times and of the order of prompts")] = 0,
    timeout: Annotated[float, typer.Option(help="seconds without a word from the server")] = 600.0,
    plot: Annotated[Path | None, typer.Option(help="draw waits and throughput, as .svg or .png")] = None,
    out: Annotated[Path | None, typer.Option(help="write every request's times, as JSON")] = None,
    as_json: AsJson = False,
) -> None:
    """Put load on a server, and show what its clients wait.

    Requests come at random times (a Poisson process), however many are under way, as those of many people do; a wait
    counts from when a request was due. A request is good where it keeps both limits; goodput counts those.
    """
    with before_anything_runs():
        if rate and streams:
            raise RequestError("--rate and --streams: give one of them")
        if any(each <= 0 for each in rate or ()):
            raise RequestError("--rate must be above 0")
        check_outputs(plot, out)
        chosen = read_prompts(prompts, category, per_category)
        try:
            import httpx
        except ImportError:
            raise RequestError("the load needs httpx: pip install 'specdec[serve]'") from None
        from specdec.comparison.extras import needs
        from specdec.loadtest import client, figures, picture, run

        if plot is not None:
            needs("matplotlib.figure")
        fields = {"max_tokens": max_new_tokens, "temperature": temperature, **dict(map(_field, field or ()))}
        bare = client.Address(url, chat, fields, api_key)

        async def named() -> str:
            async with httpx.AsyncClient(timeout=10.0) as connected:
                return await client.first_model(connected, bare)

        name = model or asyncio.run(named())
    address = client.Address(url, chat, {"model": name, **fields}, api_key)
    goal, answers = figures.Goal(good_first, good_token), dict[str, Any]()
    summaries: list[Summary] = []
    rates: list[float | None] = [*rate] if rate else [1.0]
    loads = (
        [run.Load(None, count, num_requests, seed) for count in streams]
        if streams
        else [run.Load(each, None, num_requests, seed) for each in rates]
    )
    for load in loads:
        with counted(num_requests, f"requests, {load}") as (advance, _):
            ran = asyncio.run(run.run(address, load, chosen, timeout, advance))
        summaries.append(figures.summary_of(ran, goal))
        answers[str(load)] = [{name: getattr(each, name) for name in each.__slots__} for each in ran.answers]
    if as_json:
        typer.echo(json.dumps([summary.as_dict() for summary in summaries]))
    else:
        _show(summaries, goal)
    if plot is not None:
        picture.save_picture(plot, summaries, f"{name} at {address.base}")
    if out is not None:
        write_text(out, json.dumps(answers))
    if any(summary.failures for summary in summaries):
        raise typer.Exit(EXIT_ERROR)


def _show(summaries: "list[Summary]", goal: "Goal") -> None:
    table = FiguresTable("load", "done", "tokens/s", "good/s", "first p50", "p99", "token p50", "p99")
    for each in summaries:
        table.add_row(
            each.load,
            f"{each.num_succeeded}/{each.num_requests}",
            f"{each.tokens_per_second:.1f}",
            f"{each.goodput:.2f}",
            *_shown(each.first, 1.0, "s"),
            *_shown(each.per_token, 1000.0, "ms"),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"first: to the first text; token: for each one behind it; good: within {goal.first:g} s and "
        f"{1000 * goal.per_token:g} ms",
        style="dim",
    )
    for each in summaries:
        for reason, count in each.failures.items():
            console.print(f"{each.load}: {count} failed: {reason}", style="bold red", markup=False)


def _shown(spread: "Spread", scale: float, unit: str) -> tuple[str, str]:
    """The median and the 99th percentile."""
    if spread.values is None:
        return "–", "–"
    return f"{spread.values[0] * scale:.3g} {unit}", f"{spread.values[-1] * scale:.3g} {unit}"


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"--field {text!r}: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
