"""Commands that show decoding: the mask of a step, a trace of a generation, and a race of two strategies."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from specdec.apps.cli.decode import figures
from specdec.apps.cli.drawing import lane_line, mask_lines, panels, source_key, step_lines
from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.options import (
    EXIT_ERROR,
    Chat,
    MaxNewTokens,
    ProposerOption,
    Seed,
    Temperature,
    before_anything_runs,
    check_outputs,
    check_request,
    refusing,
    sends_chat,
    write_text,
)
from specdec.apps.cli.progress import status
from specdec.apps.cli.ranked_choice import takes_model
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.apps.pictures.race import Lane
    from specdec.apps.pictures.trace import Recorder

_PROMPT = (  # one of the built-in model's prompts that suits all pictures
    "Worked arithmetic, sheet 1\n\n1. What does a coat marked 600 euros cost after a reduction of 20 per cent? "
    "One per cent is 6.00 euros, hence"
)
_WARM_UP = 8  # tokens: a model's first passes are slower than those after
_REFRESH = 0.05  # seconds between two pictures of a race

_SHOWN_DEFAULT = "a sheet of arithmetic"

Prompt = Annotated[str, typer.Option(help="the prompt", show_default=_SHOWN_DEFAULT)]


@takes_model
def mask(
    proposer: ProposerOption = "lookahead:N=4,W=5,G=2",
    choice: ModelChoice = USUAL,
    prompt: Prompt = _PROMPT,
    chat: Chat = None,
    step: Annotated[int | None, typer.Option(min=1, help="counted from 1 (default: an instructive one)")] = None,
    max_new_tokens: MaxNewTokens = 64,
    out: Annotated[Path | None, typer.Option(help="draw a figure as well, as .svg or .png")] = None,
) -> None:
    """Draw the attention mask of one step of decoding.

    It shows which nodes of the draft tree see which.
    """
    with before_anything_runs():
        check_outputs(out)
        settings = {"max_new_tokens": max_new_tokens}
        _check_early(choice, prompt, settings, proposer)
        from specdec.apps.pictures.mask import MaskPicture, check_path, save, telling_step

        if out is not None:
            check_path(out)
        recorder = _recorder(proposer, choice, prompt, settings)
    with refusing(), status("decoding"), recorder.generator:
        trace = recorder.trace(_asked(prompt, chat, choice), max_new_tokens=max_new_tokens, seed=0)
        number = telling_step(trace) if step is None else step
        picture = MaskPicture.of(trace, number, recorder.generator.shapes)
        if out is not None:
            save(picture, out)
    console = Console(highlight=False)
    for line in mask_lines(picture, console.width):
        console.print(line, soft_wrap=True)


@takes_model
def trace(  # noqa: PLR0913, PLR0917 - as above
    prompt: Annotated[str, typer.Argument(help="the prompt", show_default=_SHOWN_DEFAULT)] = _PROMPT,
    chat: Chat = None,
    proposer: ProposerOption = "lookahead:N=5,W=7,G=7",
    choice: ModelChoice = USUAL,
    max_new_tokens: MaxNewTokens = 24,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="also show probe and support nodes")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the trace as JSON")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="write the trace as a page")] = None,
) -> None:
    """Show a generation step by step: drafts, acceptance, text."""
    settings = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with before_anything_runs():
        check_outputs(json_file, html_file)
        _check_early(choice, prompt, settings, proposer)
        from specdec.apps.pictures.page import check_page, save_page

        if html_file is not None:
            check_page()
        recorder = _recorder(proposer, choice, prompt, settings)
    with refusing(), status("decoding"), recorder.generator:
        traced = recorder.trace(_asked(prompt, chat, choice), **settings)
        if json_file is not None:
            write_text(json_file, json.dumps(traced.to_json(), ensure_ascii=False, indent=1) + "\n")
        if html_file is not None:
            save_page(traced, html_file)
    console = Console(highlight=False)
    text = traced.prompt
    letters = traced.letters
    if letters:
        console.print(source_key(letters))
    for number, taken in enumerate(traced.steps, start=1):
        for line in step_lines(taken, number, text, all_nodes, console.width, letters):
            console.print(line)
        console.print()
        text += taken.text
    for line in (figures(traced.result), *traced.result.notes):
        console.print(line, style="dim", markup=False, soft_wrap=True)


@takes_model
def race(  # noqa: PLR0913, PLR0917 - as above
    first: Annotated[str, typer.Argument(metavar="A", help="a strategy, as for --proposer")],
    second: Annotated[str, typer.Argument(metavar="B", help="another one")],
    prompt: Prompt = _PROMPT,
    chat: Chat = None,
    choice: ModelChoice = USUAL,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
) -> None:
    """Decode one prompt with two strategies, side by side.

    They take turns, so other programs affect both equally.
    Exit code 1 if their texts differ.
    """
    settings = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with before_anything_runs():
        generators = _generators((first, second), choice, prompt, settings)
    from specdec.apps.pictures.race import Lane, first_difference
    from specdec.apps.pictures.race import race as advance

    asked = _asked(prompt, chat, choice)
    names = (first, second) if first != second else (f"{first} (left)", f"{second} (right)")
    lanes = [Lane(name, generator) for name, generator in zip(names, generators, strict=True)]
    with refusing(), generators[0], generators[1]:
        for generator in generators:
            generator.generate(asked, **{**settings, "max_new_tokens": min(_WARM_UP, max_new_tokens)})
        _show(lanes, advance(lanes, asked, **settings))
    place = first_difference(lanes)
    for line in _outcome(lanes, place):
        typer.echo(line)
    if place is not None:
        raise typer.Exit(EXIT_ERROR)


def _recorder(proposer: str, choice: ModelChoice, prompt: str, settings: dict[str, Any]) -> "Recorder":
    check_request(proposer, **choice.stages, settings=settings)
    from specdec.apps.pictures.trace import Recorder

    loaded = choice.load(proposer)
    with status("trying the model out"):
        return Recorder(*loaded, proposer, **choice.stages)


def _generators(proposers: tuple[str, str], choice: ModelChoice, prompt: str, settings: dict[str, Any]) -> list[Any]:
    _check_early(choice, prompt, settings, *proposers)
    strategies, _ = check_request(*proposers, **choice.stages, settings=settings)
    from specdec.generator import Generator

    loaded, tokenizer = choice.load(*strategies)
    with status("trying the model out"):
        return [Generator(loaded, tokenizer, proposer=strategy, **choice.stages) for strategy in strategies]


def _asked(prompt: str, chat: bool | None, choice: ModelChoice) -> Any:
    """Return the prompt to decode: the text, or a chat message with it."""
    from specdec.apps.comparison.prompts import as_messages

    is_text = chat is None and prompt == _PROMPT  # which is to be continued
    return as_messages(prompt) if not is_text and sends_chat(chat, choice.model) else prompt


def _check_early(choice: ModelChoice, prompt: str, settings: dict[str, Any], *proposers: str) -> None:
    if not prompt:
        raise RequestError("the prompt is empty: give at least one token")
    choice.check_early(*proposers, settings=settings, prompts=[prompt])


def _show(lanes: list["Lane"], progress: Iterator["Lane"]) -> None:
    """Show two panels in a terminal; elsewhere, a line for each strategy at the end."""
    console = Console(highlight=False)
    if not console.is_terminal:
        for _ in progress:
            pass
        for lane in lanes:
            console.print(lane_line(lane), soft_wrap=True, markup=False)
        return
    with Live(panels(lanes, console), console=console, auto_refresh=False) as live:
        shown = time.perf_counter()
        for lane in progress:
            # Drawn between steps only, so that the lanes' seconds don't include it.
            if lane.result is not None or time.perf_counter() - shown > _REFRESH:
                live.update(panels(lanes, console), refresh=True)
                shown = time.perf_counter()


def _outcome(lanes: list["Lane"], difference: int | None) -> Iterator[str]:
    from specdec.strategies.autoregressive import AutoregressiveProposer

    quick, slow = sorted(lanes, key=lambda lane: lane.seconds)
    yield (
        f"{quick.name} finished first: {quick.seconds:.2f} s of its own against {slow.seconds:.2f} s, "
        f"{slow.seconds / quick.seconds:.2f} times as fast"
    )
    yield "a single race proves nothing: `specdec compare` measures"
    used = quick.generator.numerics
    yield f"numerics: {used}"
    if used.is_bit_exact and any(isinstance(lane.generator.proposer, AutoregressiveProposer) for lane in lanes):
        yield "exact numerics may slow plain decoding down: `specdec compare` measures against it in fast ones"
    if difference is None:
        yield "the texts are identical"
    else:
        yield f"the texts DIFFER, from new token {difference + 1} on"
