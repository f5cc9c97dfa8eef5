"""Options that commands share, and the handling of wrong usage."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.progress import status
from specdec.errors import RequestError, SpecdecError, memory_ran_out
from specdec.models.own_models import SMOLLM2, default_model

BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # some editors and shells put it before UTF-8 text
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Verifier = Annotated[str, typer.Option(help="acceptance rule: match, rejection, traversal or typical (lossy)")]
ProposerOption = Annotated[
    str, typer.Option(help="drafting strategy, as name:option=value,…; several joined by + (see `specdec plugins`)")
]
MODEL_HELP = (
    "a folder, hub name or GGUF file; 'smollm2' is SmolLM2-135M-Instruct, which `specdec demo` fetches, and 'demo' a "
    "small built-in model (./demo a folder of that name)"
)
SHOWN_DEFAULT_MODEL = "smollm2 if it has been fetched, else demo"
ModelOption = Annotated[str | None, typer.Option(help=MODEL_HELP, show_default=SHOWN_DEFAULT_MODEL)]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat",
        show_default=False,
        help="send the prompt as a user message, by the model's chat template (default: continue it as text, but with "
        "smollm2 as the default model send it)",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="maximum tokens to generate")]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the most likely token")]
Seed = Annotated[int | None, typer.Option(help="random seed of sampling: the same seed gives the same text")]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]

NewTokens = Annotated[int, typer.Option(min=1, help="maximum tokens to generate per prompt")]
OrderSeed = Annotated[
    int,
    typer.Option(
        help="random seed of the runs' order and of sampling; further repeats sample with seeds derived from it"
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="number of torch threads (default: torch's choice)")]


def check_request(
    *proposers: str,
    verifier: str = "match",
    numerics: str = "auto",
    weights: str = "auto",
    backend: str = "auto",
    settings: Mapping[str, Any],
) -> tuple[list[Any], Any]:
    """Check strategies, acceptance rule and settings before loading, which takes seconds; return what was made.

    Raises:
        PluginError: for a name that isn't installed, or a refused option.
        RequestError: for unknown numerics or weights, or refused settings.
    """
    with status("starting"):  # imports torch
        from specdec.models.weights.modes import checked_weights
        from specdec.numerics import checked_mode
        from specdec.plugins.registry import load_plugins
        from specdec.settings import Settings

    registry = load_plugins()
    strategies = [registry.make("proposers", proposer) for proposer in proposers]
    rule = registry.make("verifiers", verifier)
    checked_mode(numerics)
    checked_weights(weights, registry.kernels())
    if backend != "auto":
        registry.backend(backend)
    Settings.make(settings)
    return strategies, rule


def named_model(given: str | None) -> str:
    """Return the name of the model; if none was given, print which model the command uses and how to choose another."""
    if given is not None:
        return given
    name = default_model()
    if name == SMOLLM2:
        line = "model: SmolLM2-135M-Instruct; --model chooses another: a folder, hub name or GGUF file"
    else:
        line = (
            "model: the built-in toy of 7 million parameters, which answers no questions; --model chooses another: a "
            "folder, hub name or GGUF file (`specdec demo` fetches SmolLM2, which is then the default)"
        )
    Console(stderr=True, highlight=False).print(line, style="dim", soft_wrap=True)
    return name


def sends_chat(given: bool | None, model: str | None) -> bool:
    """Return True if the prompt is sent as a chat message: if that is given, or to SmolLM2 as the default model.

    For the default, a line on standard error says so.
    """
    if given is None and model is None and default_model() == SMOLLM2:
        line = "the prompt is sent as a chat message; --no-chat continues it as text"
        Console(stderr=True, highlight=False).print(line, style="dim", soft_wrap=True)
        return True
    return bool(given)


def load_tokenizer(name: str) -> Any:
    """Load a model's tokenizer, without the model.

    Raises:
        ModelError: if it can't be loaded.
    """
    from specdec.models.loading import checked_name, load_pretrained_tokenizer

    name = checked_name(name)
    with status(f"loading {name}"):
        quieten_transformers()
        return load_pretrained_tokenizer(name)


def quieten_transformers() -> None:
    """Turn off the progress bars and warnings of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def before_anything_runs() -> Iterator[None]:
    """Report a refusal within the block as wrong usage: one line, and exit code 2."""
    try:
        yield
    except SpecdecError as error:
        if memory_ran_out(error):
            raise
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def refusing() -> Iterator[None]:
    """Report a request refused by the running model as wrong usage; any other error is a failure."""
    try:
        yield
    except RequestError as error:
        with before_anything_runs():
            raise error from None


def check_outputs(*paths: Path | None) -> None:
    """Check before the runs that files can be written.

    Raises:
        RequestError: with the file's name.
    """
    for path in paths:
        if path is not None:
            folder = path.absolute().parent
            try:
                if not path.exists():
                    TemporaryFile(dir=folder).close()
                elif path.is_file() or path.is_dir():  # opening a pipe would wait for its reader
                    path.open("ab").close()
            except OSError as error:
                raise RequestError(
                    f"{path} can't be written ({error.strerror}): give a file in a folder that exists and is yours"
                ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file; RequestError if it can't be written."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # a token may be half a character
    except OSError as error:
        raise RequestError(f"{path} can't be written: {error.strerror}") from error


def echo_json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII unless standard output is UTF-8: no character is replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # a stream without one takes any character
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    typer.echo(json.dumps(value, ensure_ascii=not is_utf8))


def use_threads(count: int | None) -> None:
    """Set torch's number of threads, if one is given."""
    if count is not None:
        import torch

        torch.set_num_threads(count)
