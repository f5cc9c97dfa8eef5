"""Bodies: values are counted before anything is parsed, and a wrong content type is said to be one."""

import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.apps.serving import body_parsing, server
from specdec.apps.serving.body_parsing import check_count
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.requests import Call, RequestParser
from tests.apps.serving.serving import Served, serving

GOOD = {"model": "demo", "prompt": "# heapq", "max_tokens": 2, "temperature": 0}


def counted(value: Any) -> tuple[int, int, int]:
    """Strings, containers and commas of a JSON value, by going through it."""
    if isinstance(value, str):
        return 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    own = (len(value) if isinstance(value, dict) else 0, 1, max(0, len(value) - 1))
    parts = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    return tuple(map(sum, zip(own, *parts, strict=True)))  # type: ignore[return-value]  # three numbers


TEXTS = st.text(st.sampled_from('ab",[{\\\n}]'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=12,
)


@given(VALUES)
def test_values_are_counted_whatever_stands_in_strings(value: Any) -> None:
    """The limits let a body pass exactly where going through the parsed value finds no more of each kind."""
    content = json.dumps(value).encode()
    names = "_MOST_STRINGS", "_MOST_CONTAINERS", "_MOST_VALUES"
    for name, number in zip(names, counted(value), strict=True):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(body_parsing, name, number)
            check_count(content)
            patched.setattr(body_parsing, name, number - 1)
            with pytest.raises(ApiError, match="are allowed"):
                check_count(content)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("completions", {"prompt": [[1]] * 900_000}),
        ("completions", {"prompt": ["a"] * 700_000}),
        ("completions", {"prompt": [1] * 1_500_000}),
        ("completions", {"stop": ["a"] * 700_000}),
        ("completions", {"metadata": {"a": [{}] * 900_000}}),
        ("completions", {"logit_bias": {str(number): 1 for number in range(300_000)}}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}] * 60_000}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}] * 2049}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 60_000}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a", "name": [[]] * 900_000}]}),
        ("chat/completions", {"tools": [{"type": "function"}] * 60_000}),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_many_tiny_values_are_refused_before_any_is_encoded(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr("specdec.apps.serving.prompt_encoder.encode", lambda *_: pytest.fail("it was encoded"))
    answer = served.post(f"/v1/{path}", {"model": "demo", "prompt": "a", "max_tokens": 1, **fields})
    assert answer.status_code == 400, answer.text
    assert len(answer.text) < 500


def test_prompts_of_more_ids_than_the_model_takes_arent_gone_through(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.apps.serving.prompt_encoder.encode", lambda *_: pytest.fail("it was encoded"))
    answer = served.post("/v1/completions", {**GOOD, "prompt": [[1], [1] * 1_000_000]})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "1000000 tokens" in answer.json()["error"]["message"]


def test_large_texts_full_of_commas_are_texts(served: Served) -> None:
    message = json.dumps({"a": ['"[1, 2]",'] * 20}) * 1200
    answer = served.post("/v1/completions", {**GOOD, "prompt": message})
    assert "characters" in answer.json()["error"]["message"], "it is too long for the model, and that alone"


def test_a_small_request_doesnt_wait_for_a_large_ones_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, is_encoding, may_go_on = RequestParser.completion, threading.Event(), threading.Event()

    def slow(parser: RequestParser, body: Any) -> Call:
        if len(str(body.prompt)) > 1000:
            is_encoding.set()
            assert may_go_on.wait(60)
        return encode(parser, body)

    monkeypatch.setattr(server, "COMPLETION", replace(server.COMPLETION, make=slow))
    with serving() as own:
        large = {**GOOD, "prompt": "# " + "x " * 20 + " " * 40_000}
        clients = [threading.Thread(target=own.post, args=("/v1/completions", large)) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            assert is_encoding.wait(60)
            assert own.post("/v1/completions", GOOD).status_code == 200
        finally:
            may_go_on.set()
            for client in clients:
                client.join()


def test_large_bodies_are_parsed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, is_parsing, may_go_on = server.COMPLETION.parse, threading.Event(), threading.Event()
    parsed = list[bool]()

    def slow(content: bytes) -> Any:
        if len(content) > 100_000:
            is_parsing.set()
            parsed.append(may_go_on.wait(60))
        return parse(content)

    monkeypatch.setattr(server, "COMPLETION", replace(server.COMPLETION, parse=slow))
    with serving() as own:
        client = threading.Thread(target=own.post, args=("/v1/completions", {**GOOD, "user": "x" * 200_000}))
        client.start()
        try:
            assert is_parsing.wait(60)
            assert httpx.get(f"{own.url}/health", timeout=60).status_code == 200
            assert own.post("/v1/completions", GOOD).status_code == 200
            assert not parsed, "they waited for it"
        finally:
            may_go_on.set()
            client.join()


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, ["no Content-Type header", "application/json"]),
        ({"Content-Type": ""}, ["no Content-Type header", "application/json"]),
        ({"Content-Type": "text/plain"}, ["'text/plain'", "application/json"]),
        ({"Content-Type": "text/json"}, ["'text/json'", "application/json"]),
        ({"Content-Type": "application/x-www-form-urlencoded"}, ["urlencoded", "application/json"]),
        ({"Content-Type": "multipart/form-data; boundary=x"}, ["'multipart/form-data'", "application/json"]),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, ["'gzip'", "uncompressed"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_wrong_content_type_is_said(served: Served, path: str, headers: dict[str, str], words: list[str]) -> None:
    answer = httpx.post(f"{served.url}/v1/{path}", content=json.dumps(GOOD).encode(), headers=headers)
    assert answer.status_code == 400
    assert all(word in answer.json()["error"]["message"] for word in words), answer.text


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_by_other_names_is_json(served: Served, kind: str) -> None:
    answer = httpx.post(
        f"{served.url}/v1/completions", content=json.dumps(GOOD).encode(), headers={"Content-Type": kind}, timeout=60
    )
    assert answer.status_code == 200
