"""The command that serves a model over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Annotated

import typer
from rich.console import Console

from specdec.cli.model_choice import USUAL, ModelChoice, takes_model
from specdec.cli.options import (
    ProposerOption,
    Threads,
    Verifier,
    before_anything_runs,
    check_request,
    refusing,
    use_threads,
)
from specdec.cli.progress import status
from specdec.errors import RequestError

_LOOPBACK = "127.0.0.1", "localhost", "::1"
_MOST_CONNECTING = 2048


@takes_model
def serve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    choice: ModelChoice = USUAL,
    proposer: ProposerOption = "auto",
    verifier: Verifier = "match",
    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0 for every one")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="SPECDEC_API_KEY", help="a key that requests must have; may be repeated"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="the model in requests; its folder's name without it")] = None,
    offer: Annotated[
        list[str] | None,
        typer.Option(help="NAME=STRATEGY: a strategy with files or models, under a name for requests; may be repeated"),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="texts decoded side by side")] = 32,
    max_queue: Annotated[int, typer.Option(min=0, help="texts that wait; more are refused")] = 256,
    cache_mb: Annotated[int | None, typer.Option(min=1, help="keys and values of texts; most of what is free")] = None,
    prefix_mb: Annotated[int, typer.Option(min=0, help="keys and values kept for texts that begin alike")] = 1024,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="of a prompt; what the model takes")] = None,
    max_connections: Annotated[int, typer.Option(min=1, help="connections open at a time")] = 1024,
    max_body_mb: Annotated[int, typer.Option(min=1, help="of a request's body")] = 4,
    max_n: Annotated[int, typer.Option(min=1, help="most texts of one prompt")] = 16,
    timeout: Annotated[float, typer.Option(min=0.001, help="seconds that a request may take")] = 600.0,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="a name by which requests may call the server; may be repeated")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="an origin whose pages may read answers; may be repeated")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="the log has prompts and answers too")] = False,
    threads: Threads = None,
) -> None:
    """Serve a model over HTTP, to OpenAI's clients.

    A request may name its own strategy, and the first page is a playground. The log goes to standard error, a line of
    JSON for each request.
    """
    with before_anything_runs():
        check_request(proposer, verifier=verifier, **choice.stages, settings={})
        offered = dict(map(_offered, offer or ()))
        for text in offered.values():
            check_request(text, settings={})
        if not all(key.strip() for key in api_key or ()):
            raise RequestError("--api-key: it is empty")
        if log_level not in {"debug", "info", "warning", "error"}:
            raise RequestError(f"--log-level {log_level!r}: it must be debug, info, warning or error")
        try:
            import fastapi  # noqa: F401 - the extra is there
            import prometheus_client  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise RequestError(f"the server needs {error.name}: pip install 'specdec[serve]'") from None
        from specdec.generator import Generator
        from specdec.serving import process as running
        from specdec.serving.open_files import connections_that_fit, raise_limit
        from specdec.serving.options import ServerOptions

        raise_limit()
        connections_that_fit(max_connections)  # or the model would be loaded in vain
        bound = running.bind(host, port)
        use_threads(threads)
        _say(f"loading {choice.model}")
        model, tokenizer = choice.load(proposer, *offered.values())
        if tokenizer is None:
            raise RequestError("the model has no tokenizer, and requests are texts")
        options = ServerOptions(
            name=name or PurePath(choice.model).name,
            api_keys=tuple(api_key or ()),
            origins=tuple(cors_origin or ()),
            hosts=tuple(allowed_host or ()),
            offered=offered,
            max_batch_size=max_batch_size,
            max_queue=max_queue,
            max_prefix_bytes=prefix_mb << 20,
            max_body_bytes=max_body_mb << 20,
            max_connections=max_connections,
            max_n=max_n,
            max_prompt_tokens=max_prompt_tokens,
            timeout=timeout,
            logs_prompts=log_prompts,
        )
    console = Console(stderr=True, highlight=False)
    if host not in _LOOPBACK and not api_key:
        console.print("warning: anyone who reaches this address can use the model: give --api-key", style="dim")
    with _doing("testing the model's passes on this machine"):
        generator = Generator(
            model,
            tokenizer,
            proposer=proposer,
            verifier=verifier,
            max_cache_bytes=None if cache_mb is None else cache_mb << 20,
            **choice.stages,
        )
    with refusing(), _doing("measuring passes and preparing strategies"):
        server = running.prepared(generator, options, proposer)
    shown = f"[{host}]" if ":" in host else host
    bound.listen(_MOST_CONNECTING)  # from here on clients needn't be refused
    address = f"http://{shown}:{bound.getsockname()[1]}"
    console.print(f"{options.name}, {generator.numerics.mode} numerics: {address}", markup=False)
    try:
        fault = running.serve(server, bound, log_level)
    finally:
        generator.close()
    if fault:
        raise RequestError(fault)


@contextmanager
def _doing(what: str) -> Iterator[None]:
    """Say what takes its time: a line that vanishes on a terminal, and stays in a log."""
    _say(what)
    with status(what):
        yield


def _say(what: str) -> None:
    """Say it where standard error is no terminal, such as a container's log."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.print(f"{what}…", markup=False, soft_wrap=True)


def _offered(text: str) -> tuple[str, str]:
    name, equals, strategy = text.partition("=")
    if not (name and equals and strategy):
        raise RequestError(f"--offer {text!r}: give NAME=STRATEGY, such as drafts=draft_model:model=…")
    return name, strategy
