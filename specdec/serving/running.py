"""A server's process: HTTP until a signal, then what was accepted to its end, and no more."""

import json
import logging
import sys
from types import FrameType
from typing import Any

import uvicorn

from specdec.generator import Generator
from specdec.serving.app import Server, application
from specdec.serving.options import ServerOptions

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
    """uvicorn's server, which on a signal goes on answering until what was accepted is done.

    A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._is_draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse what comes from now on, and end once nothing is under way."""
        if self._is_draining:
            self.should_exit = self.force_exit = True
            return
        self._is_draining = self._server.admission.is_closed = True
        logging.getLogger("specdec.serving").info("draining", extra={"event": "draining", "signal": sig})

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own housekeeping, ten times a second; True to end."""
        if self._is_draining and not self._server.admission.num_texts:
            self.should_exit = True
        return await super().on_tick(counter)


def warm_up(generator: Generator, offered: list[Any]) -> None:
    """Measure what strategies ask to be measured, which can't be done while anything is decoded."""
    generator.costs()
    for proposer in ("auto", *offered):
        generator.generate([0, 0], proposer=proposer, max_new_tokens=2)


def serve(generator: Generator, options: ServerOptions, strategy: str, host: str, port: int, log_level: str) -> None:
    """Serve until a signal comes.

    Raises:
        SpecdecError: where a strategy that is offered can't be bound.
        OSError: where the address can't be had.
    """
    log_to(sys.stderr, log_level)
    server = Server(generator, options, strategy)
    app = application(server, is_loopback=host in {"127.0.0.1", "localhost", "::1"})
    config = uvicorn.Config(
        app, host=host, port=port, log_config=None, access_log=False, server_header=False, timeout_keep_alive=30
    )
    Process(config, server).run()
