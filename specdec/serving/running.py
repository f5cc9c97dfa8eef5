"""A server's process: HTTP until a signal, then what was accepted to its end, and no more."""

import json
import logging
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

import uvicorn

from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.serving.app import application
from specdec.serving.options import ServerOptions
from specdec.serving.server import Server

_LONGEST_READING = 60  # seconds for clients to take what was written, once the server ends
_LOGGED = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "color_message"}  # of every record


class JsonLines(logging.Formatter):
    """Log records as JSON, one a line; what was given as ``extra`` are its fields."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        told |= {name: value for name, value in vars(record).items() if name not in _LOGGED}
        if "event" not in told:
            told["message"] = record.getMessage()
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_to(stream: Any, level: str) -> None:
    """Write the server's log, and uvicorn's, to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("specdec.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


class Process(uvicorn.Server):
    """uvicorn's server on a thread of its own, which ends once what was accepted is done."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def drain(self, sig: int, frame: FrameType | None) -> None:
        """Refuse what comes from now on, and end once nothing is under way; called again, end at once."""
        admission = self._server.admission
        if admission.is_closed:
            self.should_exit = self.force_exit = True
            self._server.engine.stop()
        admission.is_closed = True
        logging.getLogger("specdec.serving").info("draining", extra={"event": "draining", "signal": sig})

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own housekeeping, ten times a second; True to end."""
        if self._server.admission.is_closed and not self._server.admission.num_texts:
            self.should_exit = True
        return await super().on_tick(counter)


def prepared(generator: Generator, options: ServerOptions, strategy: str) -> Server:
    """A server whose usual strategies are ready.

    What strategies load and measure can't be done while anything is decoded, or would keep everybody waiting.

    Args:
        strategy: the text that named the generator's own.
    """
    server = Server(generator, options, strategy)
    generator.costs()
    for proposer in server.offers.usual:
        generator.generate([0, 0], proposer=proposer, max_new_tokens=2)
    return server


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, and doesn't listen yet.

    Raises:
        RequestError: for an address that can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio has each part of a stream sent at once only where TCP is named; else some wait for 40 ms.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise RequestError(
            f"{host}:{port} can't be listened on ({error.strerror}): give another --host or --port"
        ) from None
    return bound


def serve(server: Server, bound: socket.socket, log_level: str) -> str:
    """Serve on a bound socket until a signal comes; this thread decodes, and HTTP has one of its own.

    Returns:
        The fault that has ended it, or "".
    """
    log_to(sys.stderr, log_level)
    app = application(server, bound.getsockname()[0])
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_LONGEST_READING,
    )
    process = Process(config, server)

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
    return server.engine.fault or ("" if process.started else "HTTP can't be served: the log has the reason")
