"""Many clients at once: each answer is that of its request alone, and whoever leaves costs nothing more."""

import random
import threading
import time
from typing import Any

import httpx
import pytest

from specdec import Generator, demo
from tests.apps.serving.serving import Served, serving
from tests.support.built_in_model import built_in
from tests.support.waiting import soon

OFFERED = {"fast": f"eagle3:head={demo.head_folder()}", "merged": f"auto+eagle3:head={demo.head_folder()}"}
STRATEGIES = ["off", "auto", "prompt_lookup", "lookahead:N=3,W=3,G=3", "suffix+token_recycling", *OFFERED]
TEXTS = ["# heapq\ndef merge(", "# shutil", "import os\n", "# " + "gzip " * 90]


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "model": "demo", "prompt": rng.choice(TEXTS), "max_tokens": rng.randint(1, 48),
            "temperature": rng.choice([0, 0.7, 1.0]), "seed": rng.randrange(50), "proposer": rng.choice(STRATEGIES),
            "stream": True, "verifier": "match",
        }
        for _ in range(count)
    ]  # fmt: skip


def alone(generator: Generator, body: dict[str, Any]) -> str:
    settings = {"temperature": body["temperature"], "seed": body["seed"], "max_new_tokens": body["max_tokens"]}
    return generator.generate(body["prompt"], proposer="autoregressive", **settings).text or ""


def streamed(url: str, body: dict[str, Any], most_parts: int | None = None) -> str | None:
    """A streamed answer's text; None where the client left after some parts."""
    import json

    text, num_parts = "", 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                num_parts += 1
                if num_parts == most_parts:
                    return None
    return text


def test_whoever_comes_and_goes_each_answer_is_the_requests_own() -> None:
    bodies, answers = requests(24, seed=1), dict[int, str | None]()
    reference = Generator(*built_in(), proposer="autoregressive")
    with serving(max_batch_size=8, offered=OFFERED) as busy:

        def ask(number: int) -> None:
            answers[number] = streamed(busy.url, bodies[number], 2 if number % 4 == 0 else None)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join()
        finished = {number: text for number, text in answers.items() if text is not None}
        assert len(finished) >= 18
        for number, text in finished.items():
            assert text == alone(reference, bodies[number]), bodies[number]
        _wait_until_idle(busy)


def _wait_until_idle(served: Served) -> None:
    is_idle = soon(lambda: not (served.server.admission.num_texts or served.generator._binding.target.rows))
    assert is_idle, "something is left behind"
    assert not served.server.engine._texts


def test_a_client_that_leaves_ends_its_answer_streamed_or_not(served: Served) -> None:
    body = {"model": "demo", "prompt": "# heapq", "max_tokens": 400, "temperature": 0, "logit_bias": {}}
    for streams in (True, False):
        before = served.server.metrics.new_tokens.labels("AutoProposer")._value.get()
        if streams:
            with httpx.stream("POST", f"{served.url}/v1/completions", json={**body, "stream": True}) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{served.url}/v1/completions", json=body, timeout=0.3)
        _wait_until_idle(served)
        assert served.server.metrics.new_tokens.labels("AutoProposer")._value.get() - before < 400


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving(max_batch_size=1, max_queue=1) as small:
        body = {"model": "demo", "prompt": "# heapq", "max_tokens": 300, "temperature": 0}
        threads = [threading.Thread(target=small.post, args=("/v1/completions", body)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while small.server.admission.num_texts < 2:
            time.sleep(0.01)
        refused = small.post("/v1/completions", {**body, "max_tokens": 1})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        never = small.post("/v1/completions", {**body, "n": 3})
        assert never.status_code == 400
        assert never.json()["error"]["param"] == "n"
        for thread in threads:
            thread.join()
        assert small.post("/v1/completions", {**body, "max_tokens": 1}).status_code == 200


def test_a_request_that_takes_too_long_ends_with_what_it_has() -> None:
    with serving(timeout=0.5) as hurried:
        body = {"model": "demo", "prompt": "# heapq", "max_tokens": 450, "temperature": 0, "proposer": "off"}
        answer = hurried.post("/v1/completions", body).json()
        assert 0 < answer["usage"]["completion_tokens"] < 450
        assert answer["usage"]["speculation"]["ended_by"] == ["cancelled"]
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_prefix_that_requests_share_is_read_once(served: Served) -> None:
    text = "# " + "zlib " * 60
    first, second = (
        served.post(
            "/v1/completions", {"model": "demo", "prompt": text + end, "max_tokens": 2, "temperature": 0}
        ).json()
        for end in ("a", "b")
    )
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 32
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


def test_an_engine_that_fails_tells_its_clients_and_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "demo", "prompt": "# heapq", "max_tokens": 2, "temperature": 0}

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(served.server.engine, "_observe", fail)
        broken = served.post("/v1/completions", body)
    assert broken.status_code == 500
    assert "planted" in broken.json()["error"]["message"]
    assert served.post("/v1/completions", body).status_code == 200
