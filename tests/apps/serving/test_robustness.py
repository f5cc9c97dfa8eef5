"""Whatever fails, hangs or is missing on one request's way costs that request, and nobody else."""

import asyncio
import json
import re
import threading
import time
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from specdec import Generator
from specdec.apps.serving import event_stream as connection
from specdec.apps.serving import server
from specdec.apps.serving.admission import Admission
from specdec.apps.serving.answer_constraints import AnswerPlan
from specdec.apps.serving.engine import ServingEngine
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.event_stream import ClientGone, EventStream
from specdec.apps.serving.jobs import Job, JobProgress
from specdec.apps.serving.logprobs import TokenLogprob
from specdec.apps.serving.requests import Call, RequestParser
from specdec.apps.serving.response_bodies import _by_text
from specdec.apps.serving.server import Server
from specdec.backends.cache import RaggedLayer
from tests.apps.serving.serving import Served, serving
from tests.support.built_in_model import built_in
from tests.support.waiting import soon

GOOD = {"model": "demo", "prompt": "# heapq\ndef merge(", "max_tokens": 4, "temperature": 0, "proposer": "off"}


def test_an_allocation_that_fails_costs_its_own_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, fails = RaggedLayer.reserve, [False]

    def failing(layer: RaggedLayer, num_rows: int, num_slots: int) -> None:
        if fails[0]:
            fails[0] = False
            raise MemoryError("no room")
        reserve(layer, num_rows, num_slots)

    monkeypatch.setattr(RaggedLayer, "reserve", failing)
    expected = served.post("/v1/completions", GOOD).json()["choices"][0]["text"]
    fails[0] = True
    assert served.post("/v1/completions", GOOD).status_code == 500
    for _ in range(2):
        answer = served.post("/v1/completions", GOOD)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected


def test_a_backend_that_has_lost_count_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as broken:
        monkeypatch.setattr(
            "specdec.runtime.open_batch.OpenBatch.check",
            lambda _: (_ for _ in ()).throw(RuntimeError("two rows are one")),
        )
        statuses = [broken.post("/v1/completions", GOOD).status_code for _ in range(4)]
        assert statuses[-1] == 503
        health = httpx.get(f"{broken.url}/health")
        assert health.status_code == 503
        assert "restarted" in health.json()["reason"]


def test_what_has_no_memory_alone_is_refused_with_both_numbers() -> None:
    model, tokenizer = built_in()
    generator = Generator(model, tokenizer, max_cache_bytes=2_000_000)
    generator.generate("# heapq", max_new_tokens=1)  # shows what a token takes
    with serving(generator) as small:
        answer = small.post("/v1/completions", {**GOOD, "prompt": [5] * 100, "max_tokens": 380})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
        assert "480 tokens" in error["message"]
        chat = {"model": "demo", "messages": [{"role": "user", "content": "word " * 300}], "max_tokens": 4}
        for path, body, param in (
            ("completions", {**GOOD, "prompt": [5] * 300}, "prompt"),
            ("chat/completions", chat, "messages"),
            ("responses", {"model": "demo", "input": "word " * 300, "max_output_tokens": 4}, "input"),
            ("responses", {"model": "demo", "input": "word", "max_output_tokens": 400}, "max_output_tokens"),
        ):
            error = small.post(f"/v1/{path}", body).json()["error"]
            assert (error["param"], error["code"]) == (param, "context_length_exceeded"), error
        assert small.post("/v1/completions", GOOD).status_code == 200
        assert counted(small) == {"length": 1}, "what was refused is no end of a text"


def counted(served: Served) -> dict[str, int]:
    """The finished texts in the metrics, by reason."""
    text = httpx.get(f"{served.url}/metrics").text
    found = re.findall(r'^vllm:request_success_total\{finished_reason="(\w+)".*\} (\d+)', text, flags=re.MULTILINE)
    return {reason: int(count) for reason, count in found}


def test_what_is_refused_while_it_is_decoded_is_no_error_in_the_metrics() -> None:
    with serving() as own:
        for grammar in ('start: "a" x\nx: x "b"', "start: " + "x " * 3000 + '\nx: /a|b/ | ""'):
            answer = own.post("/v1/completions", {**GOOD, "guided_grammar": grammar, "max_tokens": 9})
            assert answer.status_code == 400, answer.text
        assert counted(own) == {}
        assert "e2e_request_latency_seconds_count{" not in httpx.get(f"{own.url}/metrics").text
        assert own.post("/v1/completions", GOOD).status_code == 200
        assert counted(own) == {"length": 1}


def test_a_text_that_fails_by_the_servers_fault_is_an_error_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    with serving() as own:
        monkeypatch.setattr("specdec.constraints.matcher._MatcherState.advance", failing)
        assert own.post("/v1/completions", {**GOOD, "guided_regex": "[a-z]+"}).status_code == 500
        assert counted(own) == {"error": 1}


def test_a_text_that_fails_ends_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    progress_of = ServingEngine._progress_of

    def failing(engine: ServingEngine, batch: Any, record: Any, outcome: Any, text: Any) -> Any:
        if text.index == 1:
            raise ValueError("no such character")
        return progress_of(engine, batch, record, outcome, text)

    with serving() as one:
        monkeypatch.setattr(ServingEngine, "_progress_of", failing)
        answer = one.post("/v1/completions", {**GOOD, "n": 4, "max_tokens": 400, "temperature": 1})
        assert answer.status_code == 500
        assert "no such character" in answer.json()["error"]["message"]
        assert soon(lambda: not one.server.engine._texts)
        num_tokens = one.server.metrics.new_tokens.labels("AutoProposer")._value.get()
        assert num_tokens < 3 * 400, "its siblings decode for nobody"
        assert one.server.admission.num_texts == 0


def call(num_texts: int) -> Call:
    return Call([[1]] * num_texts, 1, {}, [0] * num_texts, "off", None, None, None, False, AnswerPlan())


def test_a_place_is_free_once_decoding_is_over_whoever_reads() -> None:
    admission = Admission(max_batch_size=2, max_queue=0)

    async def decoded() -> tuple[int, int]:
        job = Job(call(2), admission.enter(2))
        job.receive(JobProgress(0, "a", (1,), result=object()))  # type: ignore[arg-type]  # any result
        before = admission.num_texts
        job.receive(JobProgress(1, "b", (1,), result=object()))  # type: ignore[arg-type]
        return before, admission.num_texts

    assert asyncio.run(decoded()) == (2, 0)


def test_a_client_that_doesnt_read_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONGEST_SEND", 0.05)
    closed = []

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    async def events() -> Any:
        yield [{"a": 1}]

    async def close() -> None:
        closed.append(True)

    async def answered() -> None:
        async with asyncio.timeout(5):
            await EventStream(events(), close)({}, never, never)

    asyncio.run(answered())
    assert closed == [True]


def test_encoding_waits_behind_admission_and_whoever_leaves_meanwhile_costs_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, began, may_end, ended = RequestParser.completion, *(threading.Event() for _ in range(3))

    def held(parser: RequestParser, body: Any) -> Call:
        began.set()
        may_end.wait(60)
        ended.set()
        return encode(parser, body)

    with serving(max_batch_size=1, max_queue=0) as small:
        num_tokens = small.server.metrics.new_tokens.labels("AutoregressiveProposer")._value.get
        monkeypatch.setattr(server, "COMPLETION", replace(server.COMPLETION, make=held))
        long = {**GOOD, "max_tokens": 400, "stream": True}
        with closing(HTTPConnection(small.url.removeprefix("http://"))) as leaving:
            leaving.request("POST", "/v1/completions", json.dumps(long), {"Content-Type": "application/json"})
            assert began.wait(60)
        assert soon(lambda: small.server.admission.num_texts == 0)
        assert not ended.is_set(), "the place is free only once the prompt is encoded"
        may_end.set()
        assert small.post("/v1/completions", GOOD).status_code == 200
        assert num_tokens() == GOOD["max_tokens"], "decoded for a client that had gone"
        began.clear()
        leave = small.server.admission.enter(1)  # the only place
        assert small.post("/v1/completions", GOOD).status_code == 429
        assert not began.is_set(), "a prompt is encoded without a place"
        leave(False)


def test_a_prompt_too_long_for_any_tokenizer_isnt_encoded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.apps.serving.prompt_encoder.encode", lambda *_: pytest.fail("it was encoded"))
    for path, field, value in (
        ("completions", "prompt", "a" * 1_000_000),
        ("chat/completions", "messages", [{"role": "user", "content": "a" * 1_000_000}]),
    ):
        body = {"model": "demo", "max_tokens": 4, field: value}
        answer = served.post(f"/v1/{path}", body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (field, "context_length_exceeded")
        assert "1000000 characters" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "demo", "messages": [1] * 200_000},
        {"model": "demo", "messages": [{"role": "user", "content": "x"}], "tools": [1] * 200_000},
        {"model": "demo", "messages": [{"role": "user", "content": "x"}], "logit_bias": dict.fromkeys("ab", 1)},
        {"model": "demo", **{f"field{number}": number for number in range(50_000)}},
    ],
    ids=["messages", "tools", "biases", "fields"],
)
def test_large_wrong_bodies_are_refused_at_the_first_fault(served: Served, body: dict[str, Any]) -> None:
    before = time.process_time()
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert len(answer.text) < 1000
    assert time.process_time() - before < 10, "every fault was told of"


def test_what_nobody_foresaw_has_openais_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as own:
        monkeypatch.setattr(Server, "model", lambda _: 1 / 0)
        answer = httpx.get(f"{own.url}/v1/models")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" in answer.json()["error"]["message"]


def test_orders_that_come_when_the_engine_has_ended_are_refused() -> None:
    with serving() as ended:
        ended.server.engine.stop()
        assert soon(lambda: ended.server.engine._has_ended)
        answer = ended.post("/v1/completions", GOOD)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"


def test_prompts_count_once_however_many_texts_they_get(served: Served) -> None:
    prompts, many = ["# heapq\ndef merge(", "# shutil"], {**GOOD, "n": 3, "temperature": 1}
    own = [len(served.generator.tokenizer(prompt)["input_ids"]) for prompt in prompts]
    usage = served.post("/v1/completions", {**many, "prompt": prompts}).json()["usage"]
    assert usage["prompt_tokens"] == sum(own)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= sum(own)


def test_likeliest_tokens_of_one_text_are_all_told_with_the_emitted_one() -> None:
    top = tuple(TokenLogprob(token, text, -float(token)) for token, text in ((1, "\ufffd"), (2, "a"), (3, "\ufffd")))
    assert _by_text(TokenLogprob(9, "b", -9.0, top)) == {"\ufffd": -1.0, "a": -2.0, "token_id:3": -3.0, "b": -9.0}
    assert _by_text(TokenLogprob(2, "a", -2.0, top)) == {"\ufffd": -1.0, "a": -2.0, "token_id:3": -3.0}


def test_the_servers_own_strategy_by_name_is_the_one_that_it_has() -> None:
    with serving() as own:
        assert own.server.aliases.proposer("auto") is own.generator.proposer


def test_a_wrong_kind_of_refusal_isnt_taken_for_gone() -> None:
    async def refused() -> None:
        raise ApiError(400, "no")

    async def silent() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(ApiError):
        asyncio.run(connection.while_connected(silent, refused()))

    async def leaving() -> Any:
        return {"type": "http.disconnect"}

    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ClientGone):
        asyncio.run(connection.while_connected(leaving, forever()))
