"""Bad requests: each is refused with the field's name and harms no other; nothing that a client sends gives a 5xx."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec import Generator
from specdec.apps.serving.schemas import ChatBody, CompletionBody
from tests.apps.serving.serving import Served, serving
from tests.support.built_in_model import built_in

GOOD = {"model": "demo", "prompt": "# heapq", "max_tokens": 2, "temperature": 0}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 16, "prompt": ["a"] * 5}, "prompt"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"include_steps": True}, "include_steps"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias[1]"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": "a"}, "presence_penalty"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"echo": 1}, "echo"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"colour": 1}, "colour"),
    ({"top_k": "many"}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"proposer": "lookahaed"}, "proposer"),
    ({"proposer": "lookahead:N=one"}, "proposer"),
    ({"proposer": "lookahead:N=5,W=100000"}, "proposer"),
    ({"proposer": "lookahead:N"}, "proposer"),
    ({"proposer": "datastore"}, "proposer"),
    ({"proposer": "datastore:path=/etc/passwd"}, "proposer"),
    ({"proposer": "suffix+datastore:path=/etc/passwd"}, "proposer"),
    ({"proposer": "eagle3:head=/etc"}, "proposer"),
    ({"proposer": "draft_model:model=/etc"}, "proposer"),
    ({"proposer": 5}, "proposer"),
    ({"verifier": "lenient"}, "verifier"),
    ({"model": 5}, "model"),
]


@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=lambda each: json.dumps(each)[:60])
def test_a_wrong_field_is_named(served: Served, wrong: dict[str, Any], param: str) -> None:
    # json.dumps of half a surrogate pair is ASCII, as a client's may be
    answer = httpx.post(
        f"{served.url}/v1/completions",
        content=json.dumps({**GOOD, **wrong}),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


CHAT_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ({"n": 99}, "n"),
]


@pytest.mark.parametrize(("wrong", "param"), CHAT_WRONG, ids=lambda each: json.dumps(each)[:60])
def test_a_wrong_field_of_chat_is_named(served: Served, wrong: dict[str, Any], param: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], **wrong}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


@pytest.fixture(scope="module")
def short() -> Iterator[Served]:
    """A server whose model has few positions, which a prompt fills quickly."""
    model, tokenizer = built_in()
    model = copy.deepcopy(model)
    model.config.max_position_embeddings = 512
    with serving(Generator(model, tokenizer, proposer="auto")) as running:
        yield running


def test_the_last_token_takes_no_position(short: Served) -> None:
    most = short.generator.shapes.max_positions
    for num_prompt, num_new in ((most, 1), (most - 3, 4)):
        answer = short.post("/v1/completions", {**GOOD, "prompt": [5] * num_prompt, "max_tokens": num_new})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] >= 1
        answer = short.post("/v1/completions", {**GOOD, "prompt": [5] * num_prompt, "max_tokens": num_new + 1})
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_the_default_length_of_a_chats_answer_fills_all_positions(short: Served) -> None:
    most, tokenizer = short.generator.shapes.max_positions, short.generator.tokenizer
    content = "word " * ((most - 60) * 100 // len(tokenizer.encode("word " * 100)))
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    usage = short.post("/v1/chat/completions", {**body, "max_tokens": 1}).json()["usage"]
    room = most - usage["prompt_tokens"] + 1
    assert 1 < room < 100
    answer = short.post("/v1/chat/completions", {**body, "min_tokens": room})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == room
    assert short.post("/v1/chat/completions", {**body, "min_tokens": room + 1}).status_code == 400


def test_too_long_is_refused_with_both_numbers(served: Served) -> None:
    most = served.generator.shapes.max_positions
    answer = served.post("/v1/completions", {**GOOD, "prompt": [5] * 100, "max_tokens": most})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert f"maximum context length is {most} tokens" in message
    assert f"{most + 100} tokens (100 in the prompt, {most} in the completion)" in message
    assert answer.json()["error"]["param"] == "max_tokens"


def test_a_prompt_that_is_too_long_is_at_fault_by_its_own_name(served: Served) -> None:
    most = served.generator.shapes.max_positions
    text = "word " * (most + 1)
    lengths: list[dict[str, Any]] = [{}, {"max_tokens": 4}]
    for path, body, param in (
        ("completions", {"prompt": text}, "prompt"),
        ("completions", {"prompt": [[5], [5] * (most + 1)]}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": text}], "max_completion_tokens": 4}, "messages"),
        ("responses", {"input": text}, "input"),
        ("responses", {"input": text, "max_output_tokens": 4}, "input"),
    ):
        for length in lengths if path != "responses" and "max_completion_tokens" not in body else [{}]:
            error = served.post(f"/v1/{path}", {"model": "demo", **body, **length}).json()["error"]
            assert (error["param"], error["code"]) == (param, "context_length_exceeded"), error


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"\xff\xfe{}", "application/json"),
        (b"[1, 2]", "application/json"),
        (b"null", "application/json"),
        (b'{"model": "demo", "prompt": "x", "temperature": NaN}', "application/json"),
        (b'{"model": "demo", "prompt": "x", "temperature": 1e999}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "application/json"),
        (b'{"model": "demo", "prompt": "x", "max_tokens": ' + b"9" * 4300 + b"}", "application/json"),
        (b'{"model": "demo", "prompt": "x", "n": ' + b"9" * 4299 + b"}", "application/json"),
        (json.dumps(GOOD).encode(), "text/plain"),
        (json.dumps(GOOD).encode(), "multipart/form-data"),
    ],
    ids=repr,
)
def test_a_body_that_isnt_one_is_refused(served: Served, content: bytes, kind: str) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    if content == b"{":
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (None, "invalid_json")


def test_other_paths_and_methods_have_openais_shape(served: Served) -> None:
    for answer, status in (
        (httpx.get(f"{served.url}/v1/nothing"), 404),
        (httpx.get(f"{served.url}/v1/completions"), 405),
        (served.post("/v1/embeddings", {}), 404),
        (httpx.get(f"{served.url}/v1/responses/resp_1"), 404),
        (served.post("/v1/completions", {**GOOD, "model": "other"}), 404),
    ):
        assert answer.status_code == status
        assert {*answer.json()["error"]} == {"message", "type", "param", "code"}


def test_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    with serving(max_body_bytes=1000, max_prompt_tokens=4) as small:
        url = f"{small.url}/v1/completions"
        assert httpx.post(url, content=b" " * 2000).status_code == 413
        assert httpx.post(url, content=iter([b" " * 600] * 4)).status_code == 413
        assert small.post("/v1/completions", {**GOOD, "prompt": [5] * 4}).status_code == 200
        answer = small.post("/v1/completions", {**GOOD, "prompt": [5] * 5})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "The prompt has 5 tokens, and this server takes 4."


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*ChatBody.model_fields, *CompletionBody.model_fields])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(NAMES, VALUES, max_size=4), path=st.sampled_from(["completions", "chat/completions"]))
def test_no_body_gives_a_5xx(served: Served, changes: dict[str, Any], path: str) -> None:
    body = json.dumps({**GOOD, **changes}).encode()
    answer = httpx.post(f"{served.url}/v1/{path}", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {200, 400, 404}, answer.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200))
def test_no_bytes_give_a_5xx(served: Served, body: bytes) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_the_next_valid_request_is_answered_right(served: Served) -> None:
    answers = {served.post("/v1/completions", GOOD).json()["choices"][0]["text"] for _ in range(2)}
    assert answers == {served.generator.tokenizer.decode([*_plain(served)])}


def _plain(served: Served) -> list[int]:
    import torch

    ids = served.generator.tokenizer("# heapq")["input_ids"]
    for _ in range(2):
        with torch.no_grad():
            ids.append(int(served.generator.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-2:]
