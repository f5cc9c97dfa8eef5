"""Options that commands share, the loading of a model, and the end of a command that is used wrongly."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.cli.progress import status
from specdec.errors import RequestError, SpecdecError

if TYPE_CHECKING:
    from specdec.comparison import EvaluationPrompt

BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # some editors and shells put it in front of UTF-8 text
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Verifier = Annotated[str, typer.Option(help="acceptance rule: match, rejection, traversal or typical (lossy)")]
ProposerOption = Annotated[str, typer.Option(help="strategy, as name:option=value,… (see `specdec plugins`)")]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat",
        show_default=False,
        help="send texts through the model's chat template; without either, instructions of a prompt file alone",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(help="most tokens to generate")]
Temperature = Annotated[float, typer.Option(help="0 takes the most likely token")]
Seed = Annotated[int | None, typer.Option(help="makes a sampled text repeatable")]
AsJson = Annotated[bool, typer.Option("--json", help="print results as JSON, one line per prompt")]

Prompts = Annotated[Path | None, typer.Option(help="a JSON Lines file; without it, the built-in prompts")]
Category = Annotated[list[str] | None, typer.Option(help="only this category's prompts; may be repeated")]
PerCategory = Annotated[int | None, typer.Option(min=1, help="at most so many prompts of each category")]
NewTokens = Annotated[int, typer.Option(help="most tokens to generate for a prompt")]
OrderSeed = Annotated[int, typer.Option(help="of the order of runs; of sampling, for each repeat one more")]
Threads = Annotated[int | None, typer.Option(min=1, help="torch's threads; its own choice without this")]


def check_request(
    *proposers: str,
    verifier: str = "match",
    numerics: str = "auto",
    weights: str = "auto",
    backend: str = "auto",
    settings: Mapping[str, Any],
) -> tuple[list[Any], Any]:
    """The strategies and the acceptance rule, made; what is misspelt is refused before seconds go into loading.

    Raises:
        PluginError: for a name that isn't installed, or an option that it refuses.
        RequestError: for numerics or weights that don't exist, and for settings.
    """
    with status("starting"):  # torch is imported
        from specdec.numerics import checked_mode
        from specdec.plugins.registry import load_plugins
        from specdec.settings import Settings
        from specdec.weights.modes import checked_weights

    registry = load_plugins()
    strategies = [registry.make("proposers", proposer) for proposer in proposers]
    rule = registry.make("verifiers", verifier)
    checked_mode(numerics)
    checked_weights(weights, registry)
    if backend != "auto":
        registry.backend(backend)
    Settings.make(settings)
    return strategies, rule


def load_model(
    name: str,
    device: str | None = None,
    dtype: str | None = None,
    read: Callable[[str], tuple[Any, Any]] | None = None,
) -> tuple[Any, Any]:
    """A model and its tokenizer, without what transformers would say of it, which would run into the text.

    Args:
        read: reads a folder in a way of its own, unless a device or dtype is asked for.

    Raises:
        RequestError: for a device that torch doesn't have here, or a dtype that isn't one.
        ModelError: for a model that can't be loaded.
    """
    from specdec import demo
    from specdec.demo import smollm2
    from specdec.loading import checked_name, load_pretrained

    if dtype not in (None, "bfloat16", "float16", "float32", "float64"):
        raise RequestError(f"--dtype {dtype!r}: it must be bfloat16, float16, float32 or float64")
    named = {"demo": demo.load, "smollm2": smollm2.load}
    if name not in named:
        checked_name(name)
    with status(f"loading {name}"):
        _check_device(device)
        _quieten_transformers()
        if read is not None and name != "demo" and device is None and dtype is None:
            return read(str(smollm2.checkpoint("float32")) if name == "smollm2" else name)
        # A dtype is for loading: a model that is cast afterwards has its rotary frequencies rounded as well.
        given = {} if dtype is None else {"dtype": dtype}
        model, tokenizer = named[name](**given) if name in named else load_pretrained(name, **given)
        return model if device is None else model.to(device), tokenizer


def load_tokenizer(name: str) -> Any:
    """A model's tokenizer alone; with the model only where they come together.

    Raises:
        ModelError: for one that can't be loaded.
    """
    if name in {"demo", "smollm2"}:
        return load_model(name)[1]
    from specdec.loading import checked_name, load_pretrained_tokenizer

    name = checked_name(name)
    with status(f"loading {name}"):
        _quieten_transformers()
        return load_pretrained_tokenizer(name)


def _check_device(device: str | None) -> None:
    import torch

    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch raises any, by the kind of device
        raise RequestError(f"--device {device!r} can't be used here: {str(error).splitlines()[0][:200]}") from error


def _quieten_transformers() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def before_anything_runs() -> Iterator[None]:
    """End the command on a refusal, as wrong usage: one line, and exit code 2."""
    try:
        yield
    except SpecdecError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def refusing() -> Iterator[None]:
    """A request that only the running model can refuse is wrong usage too; whatever else goes wrong is a failure."""
    try:
        yield
    except RequestError as error:
        with before_anything_runs():
            raise error from None


def read_prompts(path: Path | None, categories: list[str] | None, per_category: int | None) -> list["EvaluationPrompt"]:
    from specdec.comparison.prompts import demo_prompts, load_prompts, select

    return select(demo_prompts() if path is None else load_prompts(path), categories or (), per_category)


def check_outputs(*paths: Path | None) -> None:
    """Find out now, not after the runs, that a file can't be written.

    Raises:
        RequestError: naming the file.
    """
    for path in paths:
        if path is not None:
            folder = path.absolute().parent
            try:
                if not path.exists():
                    TemporaryFile(dir=folder).close()
                elif path.is_file() or path.is_dir():  # to open a pipe would be to wait for its reader
                    path.open("ab").close()
            except OSError as error:
                raise RequestError(
                    f"{path} can't be written ({error.strerror}): give a file in a folder that exists and is yours"
                ) from error


def write_text(path: Path, text: str) -> None:
    """Raises RequestError where the file can't be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} can't be written: {error}") from error


def use_threads(count: int | None) -> None:
    """torch's threads from here on."""
    if count is not None:
        import torch

        torch.set_num_threads(count)
