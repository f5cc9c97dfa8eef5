"""The load: arrivals are a Poisson process, waits count from when a request was due, and figures are right."""

import asyncio
import json
import math
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from specdec.apps.cli import app
from specdec.apps.comparison.prompts import EvaluationPrompt
from specdec.apps.loadtest.client import Address, Answered, send
from specdec.apps.loadtest.figures import Goal, summary_of
from specdec.apps.loadtest.run import FinishedLoad, Load, run
from tests.apps.serving.serving import Served

PROMPTS = [EvaluationPrompt("text", f"p{number}", f"prompt {number}") for number in range(5)]


def test_times_between_arrivals_are_exponential_and_the_seeds_own() -> None:
    load = Load(rate=4.0, streams=None, num_requests=4000, seed=3)
    gaps = np.diff(load.times())
    assert load.times()[0] == 0.0
    assert load.times() == Load(4.0, None, 4000, 3).times() != Load(4.0, None, 4000, 4).times()
    assert math.isclose(gaps.mean(), 0.25, rel_tol=0.05)
    assert math.isclose(gaps.std(), 0.25, rel_tol=0.08)  # of an exponential law, as long as its mean
    assert math.isclose((gaps > 0.25).mean(), math.exp(-1), abs_tol=0.03)


def test_prompts_come_again_only_when_all_have_come() -> None:
    order = [each.name for each in Load(1.0, None, 12, seed=1).order(PROMPTS)]
    assert sorted(order[:5]) == sorted(order[5:10]) == [f"p{number}" for number in range(5)]


def answered(due: float, arrivals: list[float], num_tokens: int, error: str = "") -> Answered:
    return Answered("p", due, arrivals, num_tokens, "text", arrivals[-1] if arrivals else 0.0, 200, error)


def test_the_figures_of_a_run() -> None:
    answers = [
        answered(0.0, [0.5, 0.6, 0.9], 9),
        answered(1.0, [3.0, 3.1], 2),  # too late at first
        answered(2.0, [0.1, 5.1], 6),  # too slow behind it
        answered(3.0, [0.2], 1),
        answered(4.0, [], 0, "the queue is full"),
    ]
    found = summary_of(FinishedLoad(Load(1.0, None, 5), answers, 10.0), Goal(first=2.0, per_token=0.2))
    assert (found.num_requests, found.num_succeeded) == (5, 4)
    assert found.tokens_per_second == 1.8
    assert found.requests_per_second == 0.4
    assert found.goodput == 0.2
    assert found.failures == {"the queue is full": 1}
    assert math.isclose(found.first[0], 0.35)
    assert math.isclose(found.per_token[0], 0.1)  # of 0.05, 0.1 and 1.0
    assert found.as_dict()["gaps"]["p50"] == 0.2  # of 0.1, 0.3, 0.1 and 5.0


class Slow(BaseHTTPRequestHandler):
    """A peer that takes its time, says nothing of usage, and refuses every third request."""

    count = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Slow.count += 1
        if Slow.count % 3 == 0:
            self.send_response(429)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "later"}}')
            return
        self.send_response(200)
        self.end_headers()
        time.sleep(0.2)
        for text in (f"{body['messages'][0]['content']}!", "", "b"):
            part = {"choices": [{"delta": {"content": text}}]}
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(name="slow")
def _slow() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("load", [Load(50.0, None, 6), Load(None, 2, 6)], ids=str)
def test_any_server_is_asked_and_its_failures_are_counted(slow: str, load: Load) -> None:
    Slow.count = 0
    ran = asyncio.run(run(Address(slow, True, {"model": "m"}), load, PROMPTS, 10.0, lambda: None))
    found = summary_of(ran, Goal(2.0, 0.2))
    assert found.num_succeeded == 4
    assert found.failures == {"later": 2}
    good = [each for each in ran.answers if each.has_succeeded]
    assert {each.num_tokens for each in good} == {2}
    assert all(0.2 <= each.first < 5.0 for each in good)
    assert {each.text for each in good} <= {f"{each.prompt}!b" for each in PROMPTS}
    # six requests in a tenth of a second, of 0.2 seconds each: an open loop waits for none
    assert ran.seconds < 2.0 if load.rate else ran.seconds > 0.39


def test_waits_count_from_when_a_request_was_due(slow: str) -> None:
    async def sent_late() -> Answered:
        async with httpx.AsyncClient() as client:
            began = time.perf_counter() - 5.0
            return await send(client, Address(slow, True, {"model": "m"}), PROMPTS[0], began, 1.0)

    Slow.count = 0
    answer = asyncio.run(sent_late())
    assert 4.2 <= answer.first <= answer.seconds < 9.0


@pytest.mark.parametrize(
    ("prompt", "is_instruction", "chat", "expected"),
    [
        ("text", False, False, ("completions", {"prompt": "text"})),
        ("text", True, False, ("chat/completions", {"messages": [{"role": "user", "content": "text"}]})),
        ("text", False, True, ("chat/completions", {"messages": [{"role": "user", "content": "text"}]})),
        ([{"role": "system", "content": "x"}], False, False, None),
        ([5, 6], False, True, ("completions", {"prompt": [5, 6]})),
    ],
)
def test_instructions_and_messages_go_to_chat_completions_and_token_ids_never(
    prompt: Any, is_instruction: bool, chat: bool, expected: tuple[str, dict[str, Any]] | None
) -> None:
    path, fields = expected or ("chat/completions", {"messages": prompt})
    url, body = Address("http://a", chat, {}).request(EvaluationPrompt("c", "n", prompt, is_instruction))
    assert url == f"http://a/v1/{path}"
    assert {name: body[name] for name in body if name in {"prompt", "messages"}} == fields


def test_a_server_that_isnt_there_is_a_failure_of_each_request() -> None:
    ran = asyncio.run(run(Address("http://127.0.0.1:9", False, {}), Load(99.0, None, 3), PROMPTS, 2.0, lambda: None))
    assert summary_of(ran, Goal(2.0, 0.2)).num_succeeded == 0


def test_the_command_shows_a_table_and_draws_a_picture(served: Served, tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    arguments = ["bench-serve", served.url, "--rate", "20", "--rate", "40", "--num-requests", "4"]
    arguments += ["--max-new-tokens", "4", "--plot", str(folder / "load.svg"), "--out", str(folder / "times.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "4/4" in result.output
    assert "first p50" in result.output
    assert "<svg" in (folder / "load.svg").read_text()
    times = json.loads((folder / "times.json").read_text())
    assert {name: len(answers) for name, answers in times.items()} == {"20/s": 4, "40/s": 4}
    assert all(each["num_tokens"] == 4 for answers in times.values() for each in answers)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rate", "1", "--streams", "1"], "give one of them"),
        (["--rate", "0"], "above 0"),
        (["--field", "x"], "NAME=VALUE"),
        (["--plot", "/nowhere/load.svg"], "can't be written"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_sent(served: Served, arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["bench-serve", served.url, *arguments])
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:9", "error: no server answers at http://127.0.0.1:9/v1 (All connection attempts failed)"),
        ("127.0.0.1:9", "error: 127.0.0.1:9 is not a server's address: it begins with http:// or https://"),
    ],
)
def test_an_address_without_a_server_is_said(address: str, told: str) -> None:
    result = CliRunner().invoke(app, ["bench-serve", address])
    assert result.exit_code == 2
    assert result.output.startswith(told)
