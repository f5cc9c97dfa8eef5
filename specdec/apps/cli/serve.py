"""The command that serves a model over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specdec.apps.cli.model_choice import USUAL, ModelChoice
from specdec.apps.cli.option_groups import OptionGroup
from specdec.apps.cli.options import (
    ProposerOption,
    Threads,
    Verifier,
    before_anything_runs,
    check_request,
    refusing,
    use_threads,
)
from specdec.apps.cli.progress import status
from specdec.apps.cli.ranked_choice import takes_model
from specdec.errors import RequestError
from specdec.machine.extras import needs

if TYPE_CHECKING:
    from specdec.apps.serving.options import ServerOptions
    from specdec.generator import Generator

_LOOPBACK = "127.0.0.1", "localhost", "::1"
_MOST_CONNECTING = 2048
BackgroundWork = Annotated[
    bool,
    typer.Option(help="once passes on a CPU have taken long, make later ones faster by huge pages, in a thread"),
]


@dataclass(frozen=True, slots=True)
class Access(OptionGroup):
    """The address of a server, its keys, and the origins and host names that it accepts."""

    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0: all")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8000
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="SPECDEC_API_KEY", help="a key that requests must have; may be repeated"),
    ] = None
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="a host name that requests may use; may be repeated")
    ] = None
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="an origin whose pages may read answers; may be repeated")
    ] = None

    def check(self) -> None:
        """Raise RequestError for an empty key, and for an origin that no page can have."""
        if not all(key.strip() for key in self.api_key or ()):
            raise RequestError("--api-key: it is empty")
        for origin in self.cors_origin or ():
            if origin not in {"*", "null"} and "://" not in origin:
                raise RequestError(f"--cors-origin {origin!r}: give an origin such as https://example.org, or *")
            scheme, _, rest = origin.partition("://")
            if "/" in rest:
                without = f"{scheme}://{rest.partition('/')[0]}"
                raise RequestError(f"--cors-origin {origin!r}: leave out the path: {without}")

    @property
    def is_open(self) -> bool:
        """True if other machines can use the server without a key."""
        return self.host not in _LOOPBACK and not self.api_key

    def address(self, port: int) -> str:
        """Return the server's address; ``port`` is the one that it got."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Limits(OptionGroup):
    """The bounds of a server."""

    max_batch_size: Annotated[int, typer.Option(min=1, help="texts decoded in one batch")] = 32
    max_queue: Annotated[int, typer.Option(min=0, help="texts that may wait; further ones are refused")] = 256
    cache_mb: Annotated[
        int | None, typer.Option(min=1, help="KV cache (default: most of the free memory)", show_default=False)
    ] = None
    prefix_mb: Annotated[int, typer.Option(min=0, help="prefix cache")] = 1024
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="longest prompt accepted (default: the model's limit)", show_default=False)
    ] = None
    max_connections: Annotated[int, typer.Option(min=1, help="open connections")] = 1024
    max_body_mb: Annotated[int, typer.Option(min=1, help="largest request body")] = 4
    max_n: Annotated[int, typer.Option(min=1, help="maximum texts for one prompt")] = 16
    max_strategy_size: Annotated[
        float, typer.Option(min=1.0, help="largest strategy that a request may name, in those with default options")
    ] = 8.0
    timeout: Annotated[float, typer.Option(min=0.001, help="seconds until a request ends with its text so far")] = 600.0

    def check(self) -> None:
        """Allow as many open files as the process may have; raise RequestError if connections need more."""
        from specdec.apps.serving.open_files import connections_that_fit, raise_limit

        raise_limit()
        connections_that_fit(self.max_connections)


@dataclass(frozen=True, slots=True)
class Logging(OptionGroup):
    """The level of a server's log, and whether it contains texts."""

    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info"
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="log prompts and answers")] = False

    def check(self) -> None:
        """Raise RequestError for an unknown level."""
        if self.log_level not in {"debug", "info", "warning", "error"}:
            raise RequestError(f"--log-level {self.log_level!r}: it must be debug, info, warning or error")


@takes_model
def serve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    choice: ModelChoice = USUAL,
    proposer: ProposerOption = "auto",
    verifier: Verifier = "match",
    access: Access = Access(),
    name: Annotated[
        str | None, typer.Option(help="the model's name in requests (default: its folder's)", show_default=False)
    ] = None,
    offer: Annotated[
        list[str] | None,
        typer.Option(help="NAME=STRATEGY: a strategy with files or models that requests may name; may be repeated"),
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(help="format of tool calls, e.g. hermes (default: the chat template's)", show_default=False),
    ] = None,
    limits: Limits = Limits(),
    logging: Logging = Logging(),
    threads: Threads = None,
    background_work: BackgroundWork = True,
) -> None:
    """Serve a model over HTTP, for OpenAI clients.

    A request may select its own strategy, and the start page is a playground. The log goes to standard error, one line
    of JSON per request.
    """
    with before_anything_runs():
        offered = dict(map(_offered, offer or ()))
        choice.check_early(proposer, *offered.values(), verifier=verifier)
        access.check()
        logging.check()
        check_request(proposer, *offered.values(), verifier=verifier, **choice.stages, settings={})
        _check_libraries()
        from specdec.apps.serving import process as running
        from specdec.apps.serving.tool_parsers.selection import check_tool_parser

        check_tool_parser(tool_parser)
        limits.check()
        name = name or PurePath(choice.name).name
        options = _server_options(name, access, limits, logging, offered=offered, tool_parser=tool_parser)
        choice.check(proposer, *offered.values())
        bound = running.bind(access.host, access.port)
        use_threads(threads)
        model, tokenizer = _loaded(choice, proposer, *offered.values())
    console = Console(stderr=True, highlight=False)
    if access.is_open:
        console.print("warning: anyone who reaches this address can use the model: give --api-key", style="dim")
    generator = _generator(model, tokenizer, proposer, verifier, choice, limits, background_work)
    with refusing(), _doing("measuring passes and preparing strategies"):
        server = running.prepared(generator, options, proposer)
    bound.listen(_MOST_CONNECTING)  # from here on clients can connect
    for note in server.notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)
    address = access.address(bound.getsockname()[1])
    console.print(f"{options.name}, {generator.numerics.mode} numerics: {address}", markup=False)
    try:
        fault = running.serve(server, bound, logging.log_level)
    finally:
        generator.close()
    if fault:
        raise RequestError(fault)


def _generator(
    model: Any, tokenizer: Any, proposer: str, verifier: str, choice: ModelChoice, limits: Limits, background_work: bool
) -> "Generator":
    from specdec.generator import Generator

    with _doing("testing the model's passes on this machine"):
        return Generator(
            model,
            tokenizer,
            proposer=proposer,
            verifier=verifier,
            max_cache_bytes=None if limits.cache_mb is None else limits.cache_mb << 20,
            background_work=background_work,
            **choice.stages,
        )


def _check_libraries() -> None:
    for module in ("fastapi", "prometheus_client", "uvicorn"):
        needs(module, "serve", "the server")


def _server_options(name: str, access: Access, limits: Limits, logging: Logging, **more: Any) -> "ServerOptions":
    from specdec.apps.serving.options import ServerOptions

    return ServerOptions(
        name=name,
        api_keys=tuple(access.api_key or ()),
        origins=tuple(access.cors_origin or ()),
        hosts=tuple(access.allowed_host or ()),
        max_batch_size=limits.max_batch_size,
        max_queue=limits.max_queue,
        max_prefix_bytes=limits.prefix_mb << 20,
        max_body_bytes=limits.max_body_mb << 20,
        max_connections=limits.max_connections,
        max_n=limits.max_n,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_strategy_size=limits.max_strategy_size,
        timeout=limits.timeout,
        logs_prompts=logging.log_prompts,
        **more,
    )


@contextmanager
def _doing(what: str) -> Iterator[None]:
    """Show what takes time: a line that vanishes on a terminal, and stays in a log."""
    _say(what)
    with status(what):
        yield


def _say(what: str) -> None:
    """Print a line if standard error is no terminal, such as a container's log."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.print(f"{what}…", markup=False, soft_wrap=True)


def _loaded(choice: ModelChoice, *strategies: str) -> tuple[Any, Any]:
    """Load the model and its tokenizer."""
    _say(f"loading {choice.name}")
    model, tokenizer = choice.load(*strategies, has_media=True)
    if tokenizer is None:
        raise RequestError("the model has no tokenizer, which requests need")
    return model, tokenizer


def _offered(text: str) -> tuple[str, str]:
    name, equals, strategy = text.partition("=")
    if not (name and equals and strategy):
        raise RequestError(f"--offer {text!r}: give NAME=STRATEGY, such as drafts=draft_model:model=…")
    return name, strategy
