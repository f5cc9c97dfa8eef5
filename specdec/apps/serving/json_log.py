"""The server's log: all loggers' records as lines of JSON, with a rate limit for repeated records."""

import json
import logging
import threading
import time
from typing import Any

_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "color_message", "taskName"}
_OWN = "specdec.serving", "uvicorn"
_MOST_REPEATS = 5
_PERIOD = 10.0  # seconds


class JsonLines(logging.Formatter):
    """Formats log records as one line of JSON each, including the names in ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        fields |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if "event" not in fields:
            fields |= {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class FewRepeats(logging.Filter):
    """Passes five records per line of code in ten seconds; the next one reports how many were suppressed.

    The lines of requests are never suppressed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}  # when a period began, and the records since
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == "request":
            return True
        place, now = (record.name, record.pathname, record.lineno), time.monotonic()
        with self._lock:
            began, count = self._seen.get(place, (now, 0))
            if now - began >= _PERIOD:
                if count > _MOST_REPEATS:
                    record.left_out = count - _MOST_REPEATS
                began, count = now, 0
            self._seen[place] = began, count + 1
        return count < _MOST_REPEATS


def log_to(stream: Any, level: str) -> None:
    """Write the process's log to a stream: the server's from a level on, and warnings of libraries."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(FewRepeats())
    root = logging.getLogger()
    for logger in [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]:
        logger.handlers, logger.propagate = [], True
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    for name in _OWN:
        logging.getLogger(name).setLevel(level.upper())
    logging.captureWarnings(True)
