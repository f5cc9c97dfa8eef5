"""The log: every logger's records are lines of JSON, and what repeats itself is left out and counted."""

import json
import logging
import subprocess
import sys

import pytest

from specdec.apps.serving import json_log

EVERY_LOGGER = """
import asyncio, logging, sys, warnings
import uvicorn, transformers
from specdec.apps.serving.json_log import log_to
log_to(sys.stderr, "info")
for name in ("asyncio", "uvicorn.error", "uvicorn.access", "transformers.generation", "specdec.serving", "a.new.one"):
    logging.getLogger(name).error("failed: %s", name, extra={"reason": b"bytes"})
warnings.warn("careful")
logging.getLogger("somebody").info("chatter")
async def failing():
    raise RuntimeError("planted")
async def forgotten():
    asyncio.create_task(failing())
    await asyncio.sleep(0.01)
asyncio.run(forgotten())
loop = asyncio.new_event_loop()
for number in range(1000):
    loop.call_exception_handler({"message": f"socket.accept() out of system resource {number}"})
loop.close()
"""


def test_every_logger_writes_json_and_repeats_little() -> None:
    ended = subprocess.run([sys.executable, "-c", EVERY_LOGGER], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["logger"] for line in lines[:6]] == [
        "asyncio", "uvicorn.error", "uvicorn.access", "transformers.generation", "specdec.serving", "a.new.one",
    ]  # fmt: skip
    assert lines[0]["message"] == "failed: asyncio"
    assert "careful" in lines[6]["message"]
    assert "planted" in lines[7]["traceback"]
    assert "chatter" not in ended.stderr
    assert len(lines) == 8 + 5 - 1, "asyncio writes all its failures from one line of code"


def test_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(json_log.time, "monotonic", lambda: now)
    few = json_log.FewRepeats()

    def record(line: int, **fields: object) -> logging.LogRecord:
        made = logging.LogRecord("x", logging.ERROR, "file.py", line, "failed", (), None)
        vars(made).update(fields)
        return made

    assert [few.filter(record(1)) for _ in range(100)] == [True] * 5 + [False] * 95
    assert few.filter(record(2)), "another line of code"
    assert all(few.filter(record(3, event="request")) for _ in range(100)), "each request has its line"
    now = 10.0
    later = record(1)
    assert few.filter(later)
    assert json.loads(json_log.JsonLines().format(later))["left_out"] == 95
