"""Commands that decode."""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.answers import ColouredWriter, PlainWriter
from specdec.apps.cli.constraint_options import UNCONSTRAINED, ConstraintOptions
from specdec.apps.cli.media_options import NO_MEDIA, MediaOptions
from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.option_groups import OptionGroup
from specdec.apps.cli.options import (
    BYTE_ORDER_MARK,
    AsJson,
    Chat,
    MaxNewTokens,
    ProposerOption,
    Seed,
    Temperature,
    Verifier,
    before_anything_runs,
    check_request,
    echo_json,
    refusing,
    sends_chat,
)
from specdec.apps.cli.progress import status
from specdec.apps.cli.ranked_choice import takes_model
from specdec.errors import RequestError, plural

if TYPE_CHECKING:
    from specdec.decoding.result import Chunk


@dataclass(frozen=True, slots=True)
class Decoding(OptionGroup):
    """The settings of a request."""

    max_new_tokens: MaxNewTokens = 128
    temperature: Temperature = 0.0
    top_k: Annotated[int | None, typer.Option(help="sample among the k most likely tokens")] = None
    top_p: Annotated[
        float | None, typer.Option(help="sample among the most likely tokens whose probabilities add up to this")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(help="drop tokens below this fraction of the top token's probability")
    ] = None
    repetition_penalty: Annotated[float, typer.Option(help="above 1 discourages tokens already written")] = 1.0
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="never write an n-gram of this size twice")] = None
    eos_token_id: Annotated[list[int] | None, typer.Option(help="stop at this id; may be repeated")] = None
    stop: Annotated[list[str] | None, typer.Option(help="stop before this string; may be repeated")] = None
    skip_special_tokens: Annotated[bool, typer.Option(help="leave special tokens out of the text")] = True
    seed: Seed = None

    def settings(self) -> dict[str, Any]:
        """Return them as ``Generator.generate`` takes them."""
        return {name: value for name, value in asdict(self).items() if value not in (None, [])}


@takes_model
def generate(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    prompt: Annotated[str | None, typer.Argument(help="the prompt (default: --file or standard input)")] = None,
    choice: ModelChoice = USUAL,
    file: Annotated[Path | None, typer.Option(help="read the prompt from a file")] = None,
    chat: Chat = None,
    reference: Annotated[
        Path | None, typer.Option(help="draft from a file's text, which the answer is expected to resemble")
    ] = None,
    media: MediaOptions = NO_MEDIA,
    constrained: ConstraintOptions = UNCONSTRAINED,
    proposer: ProposerOption = "auto",
    verifier: Verifier = "match",
    decoding: Decoding = Decoding(),
    as_json: AsJson = False,
) -> None:
    """Continue a prompt; the text is printed as it is decoded.

    For example:

    specdec generate "Explain why the sky is blue." --chat --model smollm2

    At the end, a line on standard error reports tokens per step (a step is one forward pass), tokens per second and
    numerics.
    """
    settings = decoding.settings()
    with before_anything_runs():  # what is wrong is said before seconds go into loading
        text = _read_prompt(prompt, file)
        choice.check_early(proposer, verifier=verifier, settings=settings, prompts=[text])
        settings["constraint"] = constrained.constraint()
        resembled = None if reference is None else _read_text(f"--reference {reference}", reference)
        if (parts := media.parts()) and chat is False:
            raise RequestError("--image and --audio are parts of a chat message: leave out --no-chat")
        if not text and not chat and not parts:
            raise RequestError(
                "the prompt is empty: give at least one token, as an argument, with --file, or on standard input"
            )
        (strategy,), rule = check_request(proposer, verifier=verifier, **choice.stages, settings=settings)
        settings["reference"] = resembled
        from specdec.generator import Generator

        loaded, tokenizer = choice.load(strategy, has_media=True)
        is_chat = bool(parts) or sends_chat(chat, choice.model)
    with before_anything_runs(), status("trying the model out"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is lossy")  # it stands in the figures
        generator = Generator(loaded, tokenizer, proposer=strategy, verifier=rule, **choice.stages)
    content = [*parts, {"type": "text", "text": text}] if parts else text
    request: Any = [{"role": "user", "content": content}] if is_chat else text
    with refusing(), status("decoding") as vanish:
        if not as_json:
            result = print_stream(Console(highlight=False), generator.stream(request, **settings), vanish)
        else:
            result = generator.generate(request, **settings)
    if as_json:
        echo_json(_as_json(result))
    else:
        for line in (*result.notes, figures(result, is_sampled=decoding.temperature > 0.0)):
            Console(stderr=True, highlight=False).print(line, style="dim", soft_wrap=True)
    generator.close()  # strategies may save data


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise RequestError("a prompt and --file were both given: choose one")
    if prompt is not None:
        return _checked_text("the argument", lambda: prompt)
    if file is not None:
        return _read_text(f"--file {file}", file)
    if sys.stdin is None or sys.stdin.isatty():
        raise RequestError("no prompt: give one as an argument, with --file, or on standard input")
    return _checked_text("standard input", lambda: sys.stdin.read().removeprefix(BYTE_ORDER_MARK))


def _read_text(where: str, file: Path) -> str:
    return _checked_text(where, lambda: file.read_text(encoding="utf-8-sig"))


def _checked_text(where: str, read: Callable[[], str]) -> str:
    """Return a text that can be read and is UTF-8; ``where`` is its place in errors."""
    try:
        text = read()
        text.encode("utf-8")  # the interpreter decodes invalid bytes as halves of surrogate pairs
    except OSError as error:
        raise RequestError(f"{where} can't be read: {error.strerror}") from error
    except UnicodeError as error:
        raise RequestError(f"{where} is not UTF-8 text: convert it first") from error
    return text


def print_stream(console: Console, chunks: Iterator["Chunk"], before_text: Callable[[], None]) -> Any:
    """Print text as it is committed; the tokens of a multi-token step share a colour. Pipes get plain text.

    ``before_text`` is called before each piece of text if the output is a terminal.
    """
    writer = ColouredWriter(console) if console.is_terminal else PlainWriter(console)
    for chunk in chunks:
        if console.is_terminal:
            before_text()
        writer.add(chunk)
    writer.end()
    return chunk.result


def _sources(stats: Any) -> Iterator[str]:
    """Return, for each strategy of a merge, the numbers of proposed and accepted nodes."""
    for name, by_depth in stats.sources.items():
        named, accepted = (sum(counts) for counts in zip(*by_depth.values(), strict=True))
        yield f"{name} proposed {plural(named, 'node')}, {accepted} accepted"


def figures(result: Any, is_sampled: bool = False) -> str:
    """Return one line of figures for a request, with the seed if it was sampled."""
    stats = result.stats
    sources = "; ".join(_sources(stats))
    return (f"{sources}\n" if sources else "") + (
        f"{plural(stats.num_tokens, 'token')} in {plural(stats.steps, 'step')}, "
        f"{stats.tokens_per_step:.2f} tokens per step, "
        f"{stats.tokens_per_second:.0f} tokens per second; finished: {result.finish_reason}; "
        f"{f'seed {result.seed}; ' if is_sampled else ''}"
        f"numerics: {result.numerics.mode}"
        f"{'' if result.lossless else '; LOSSY: not what the model alone would write'}"
    )


def _as_json(result: Any) -> dict[str, Any]:
    stats = result.stats
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "lossless": result.lossless,
        "numerics": {
            "mode": result.numerics.mode,
            "bit_exact": result.numerics.is_bit_exact,
            "reason": result.numerics.inexact,
        },
        "ties": result.ties,
        "stats": {
            "steps": stats.steps,
            "num_tokens": stats.num_tokens,
            "tokens_per_step": stats.tokens_per_step,
            "accepted_lengths": stats.accepted_lengths,
            "num_drafts": stats.num_drafts,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_accepted_tokens": stats.num_accepted_tokens,
            "acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "num_nodes": stats.num_nodes,
            "num_fallbacks": stats.num_fallbacks,
            "sources": stats.sources,
            "calibration": stats.calibration,
            "seconds": stats.seconds,
            "peak_cache_bytes": stats.peak_cache_bytes,
        },
        "notes": result.notes,
    }
