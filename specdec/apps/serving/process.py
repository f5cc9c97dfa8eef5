"""A server's process: serves HTTP until a signal, then finishes the accepted requests and ends."""

import asyncio
import logging
import math
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType

import uvicorn

from specdec.apps.serving.app import application
from specdec.apps.serving.connections import Connection, Connections
from specdec.apps.serving.json_log import log_to
from specdec.apps.serving.open_files import connections_that_fit
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.server import Server
from specdec.apps.serving.strategy_aliases import OFF
from specdec.errors import RequestError
from specdec.generator import Generator

_LONGEST_READING = 60  # seconds for clients to read the rest of their answers at shutdown


class Process(uvicorn.Server):
    """uvicorn's server, which accepts connections by ``Connections``, and finishes accepted requests before it ends."""

    def __init__(self, config: uvicorn.Config, connections: Connections, server: Server) -> None:
        super().__init__(config)
        self._connections, self._server = connections, server
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections on bound sockets."""
        await super().startup(sockets=[])
        for listening in sockets or []:
            accepting = self._connections.accept(listening, self._connection)
            self._accepting.append(asyncio.create_task(accepting, name="specdec-accept"))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and wait for running answers."""
        for task in self._accepting:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await super().shutdown(sockets)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state, self._connections)

    def drain(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests, and end after the running ones; at the second call, end immediately."""
        admission = self._server.admission
        if admission.is_closed:
            self.should_exit = self.force_exit = True
            self._server.engine.stop()
        admission.is_closed = True
        logging.getLogger("specdec.serving").info("draining", extra={"event": "draining", "signal": sig})

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; return True to end."""
        if self._server.admission.is_closed and not self._server.admission.num_texts:
            self.should_exit = True
        return await super().on_tick(counter)


def prepared(generator: Generator, options: ServerOptions, strategy: str) -> Server:
    """Return a server whose usual strategies are bound.

    Strategies are bound now because their loading and measuring can't run while requests decode, or would delay them.

    Args:
        strategy: the name of the generator's own strategy, with its options.

    Raises:
        RequestError: if the memory for keys and values is too small for a single answer.
    """
    server = Server(generator, options, strategy)
    generator.costs()
    if server.transcriptions.is_available:  # its prompts are recordings
        return server
    first = generator.generate([0, 0], proposer=server.aliases.proposer(OFF), max_new_tokens=2)
    server.notes |= dict.fromkeys(first.notes)  # the generator's own are reported once
    check_memory(generator, options)  # which that text has shown for a token
    for proposer in server.aliases.usual:
        result = generator.generate([0, 0], proposer=proposer, max_new_tokens=2)
        server.notes |= dict.fromkeys(result.notes)
    return server


def check_memory(generator: Generator, options: ServerOptions) -> None:
    """Refuse to start a server without memory for an answer of the default length.

    Raises:
        RequestError: with the number of tokens that fit, and the memory needed.
    """
    needed = min(options.default_max_tokens, generator.shapes.context_length)
    with generator.open_batch(max_prefix_bytes=options.max_prefix_bytes) as batch:
        most, num_bytes = batch.most_tokens, batch.bytes_for(needed)
    if most is None or most >= needed:
        return
    least = math.ceil(num_bytes / (1 << 20))
    raise RequestError(
        f"the memory for keys and values has room for {most} tokens, and an answer of the default length takes "
        f"{needed}: give --cache-mb {least} at least, or less to --prefix-mb where --cache-mb isn't given"
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and doesn't listen yet.

    Raises:
        RequestError: if the address is unavailable.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends each part of a stream at once only if TCP is given; otherwise some parts wait for 40 ms.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise RequestError(f"can't listen on {host}:{port} ({error.strerror}): give another --host or --port") from None
    return bound


def http_process(server: Server, bound: socket.socket) -> Process:
    """Return the HTTP process of a server for a bound socket.

    Raises:
        RequestError: if the limit of open files is too low.
    """
    options = server.options
    connections = Connections(
        connections_that_fit(options.max_connections), options.header_timeout, options.idle_timeout
    )
    server.metrics.connections.set_function(lambda: connections.num_open)
    config = uvicorn.Config(
        application(server, bound.getsockname()[0]),
        log_config=None,
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        timeout_keep_alive=math.ceil(options.idle_timeout),
        timeout_graceful_shutdown=_LONGEST_READING,
    )
    return Process(config, connections, server)


def serve(server: Server, bound: socket.socket, log_level: str) -> str:
    """Serve on a bound socket until a signal; this thread decodes, and another one serves HTTP.

    Returns:
        The error that ended the server, or "".
    """
    log_to(sys.stderr, log_level)
    process = http_process(server, bound)

    def speak() -> None:
        try:
            process.run(sockets=[bound])
        finally:
            server.engine.stop()

    speaking = threading.Thread(target=speak, name="specdec-http")
    handled = {each: signal.signal(each, process.drain) for each in (signal.SIGINT, signal.SIGTERM)}
    speaking.start()
    try:
        server.engine.run()
    finally:
        process.should_exit = True
        speaking.join()
        for each, before in handled.items():
            signal.signal(each, before)
    return server.engine.fault or ("" if process.started else "the HTTP thread failed: the log has the reason")
