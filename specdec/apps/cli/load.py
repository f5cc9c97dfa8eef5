"""The command that load-tests a server."""

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.figures_table import FiguresTable
from specdec.apps.cli.option_groups import OptionGroup, with_option_groups
from specdec.apps.cli.options import (
    EXIT_ERROR,
    AsJson,
    before_anything_runs,
    check_outputs,
    echo_json,
    write_text,
)
from specdec.apps.cli.progress import counted
from specdec.apps.cli.prompt_set import BUILT_IN, PromptSet
from specdec.errors import RequestError
from specdec.machine.extras import needs

if TYPE_CHECKING:
    from specdec.apps.loadtest import run
    from specdec.apps.loadtest.figures import Goal, Percentiles, Summary


@dataclass(frozen=True, slots=True)
class Loads(OptionGroup):
    """The loads of a test, one after the other."""

    rate: Annotated[list[float] | None, typer.Option(help="requests per second, at random times; may be repeated")] = (
        None
    )
    streams: Annotated[list[int] | None, typer.Option(min=1, help="or concurrent requests; may be repeated")] = None
    num_requests: Annotated[int, typer.Option(min=1, help="requests of each load")] = 50
    seed: Annotated[int, typer.Option(help="for the times and the order of prompts")] = 0
    timeout: Annotated[float, typer.Option(help="seconds without data from the server")] = 600.0

    def check(self) -> None:
        """Raise RequestError for both kinds of load, or for a rate of 0."""
        if self.rate and self.streams:
            raise RequestError("--rate and --streams: give one of them")
        if any(each <= 0 for each in self.rate or ()):
            raise RequestError("--rate must be above 0")

    def loads(self) -> "list[run.Load]":
        """Return the loads: by streams, by rate, or one request per second."""
        from specdec.apps.loadtest import run

        if self.streams:
            return [run.Load(None, count, self.num_requests, self.seed) for count in self.streams]
        return [run.Load(each, None, self.num_requests, self.seed) for each in self.rate or [1.0]]


@dataclass(frozen=True, slots=True)
class Bodies(OptionGroup):
    """The model and the settings in all requests of a load test."""

    model: Annotated[
        str | None, typer.Option(help="the model's name (default: the server's first)", show_default=False)
    ] = None
    chat: Annotated[bool, typer.Option("--chat", help="send all prompts as chat messages, not instructions alone")] = (
        False
    )
    max_new_tokens: Annotated[int, typer.Option(min=1, help="longest answer")] = 128
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0
    field: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: another field of each request, such as proposer=off")
    ] = None
    api_key: Annotated[str, typer.Option(envvar="SPECDEC_API_KEY", help="a key, if the server requires one")] = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of each request, apart from model and prompt."""
        given = dict(map(_field, self.field or ()))
        return {"max_tokens": self.max_new_tokens, "temperature": self.temperature, **given}


@with_option_groups
def bench_serve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    url: Annotated[str, typer.Argument(help="an OpenAI-compatible server, such as http://localhost:8000")],
    load: Loads = Loads(),
    bodies: Bodies = Bodies(),
    prompts: PromptSet = BUILT_IN,
    good_first: Annotated[float, typer.Option(help="longest good time to the first token, in seconds")] = 2.0,
    good_token: Annotated[float, typer.Option(help="longest good time per later token, in seconds")] = 0.2,
    plot: Annotated[Path | None, typer.Option(help="draw latency and throughput, as .svg or .png")] = None,
    out: Annotated[Path | None, typer.Option(help="write every request's times, as JSON")] = None,
    as_json: AsJson = False,
) -> None:
    """Load-test a server and report latency.

    Requests arrive at random times (a Poisson process), however many are in flight, as those of many users do; latency
    counts from when a request was due. Goodput counts the requests that keep both limits.
    """
    with before_anything_runs():
        load.check()
        check_outputs(plot, out)
        chosen = prompts.read()
        needs("httpx", "serve", "a load test")
        from specdec.apps.loadtest import client, figures, picture, run

        if plot is not None:
            needs("matplotlib.figure", "compare", "a plot")
        fields = bodies.fields()
        name = bodies.model or asyncio.run(client.first_model(client.Address(url, bodies.chat, fields, bodies.api_key)))
    address = client.Address(url, bodies.chat, {"model": name, **fields}, bodies.api_key)
    goal, answers = figures.Goal(good_first, good_token), dict[str, Any]()
    summaries: list[Summary] = []
    for each in load.loads():
        with counted(each.num_requests, f"requests, {each}") as (advance, _):
            ran = asyncio.run(run.run(address, each, chosen, load.timeout, advance))
        summaries.append(figures.summary_of(ran, goal))
        answers[str(each)] = [asdict(one) for one in ran.answers]
    if as_json:
        echo_json([summary.as_dict() for summary in summaries])
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
        f"first: to the first text; token: per later token; good: within {goal.first:g} s and "
        f"{1000 * goal.per_token:g} ms",
        style="dim",
    )
    for each in summaries:
        for reason, count in each.failures.items():
            console.print(f"{each.load}: {count} failed: {reason}", style="bold red", markup=False)


def _shown(spread: "Percentiles", scale: float, unit: str) -> tuple[str, str]:
    """The median and the 99th percentile."""
    return (f"{spread[0] * scale:.3g} {unit}", f"{spread[-1] * scale:.3g} {unit}") if spread else ("–", "–")


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RequestError(f"--field {text!r}: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
