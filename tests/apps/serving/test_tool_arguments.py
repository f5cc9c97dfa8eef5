"""Arguments of tool calls reach the chat template as mappings, as transformers' own convention has them."""

import json
from typing import Any

import pytest

from specdec.requests.prompts import encode
from tests.apps.serving.serving import Served, serving, templated

# One writes arguments as JSON, one goes through their items, and one is for the older form of a single call.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}\n{% endfor %}"
    "{% if message.function_call %}{{ message.function_call.arguments | items | list | length }}\n{% endif %}"
    "{% endfor %}assistant:"
)


@pytest.fixture(scope="module", name="chatting")
def _chatting() -> Any:
    with serving(templated(TEMPLATE, "autoregressive")) as running:
        yield running


def conversation(**assistant: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, **assistant},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    return {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0}


def call(arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]}


def by_transformers(served: Served, body: dict[str, Any]) -> str:
    """The answer to what transformers' own apply_chat_template writes of messages."""
    messages = [{**each, "content": each["content"] or ""} for each in body["messages"]]
    prompt = served.generator.tokenizer.apply_chat_template(messages, tokenize=False)
    ids = served.generator.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    body = {"model": "demo", "prompt": ids, "max_tokens": 8, "temperature": 0}
    return str(served.post("/v1/completions", body).json()["choices"][0]["text"])


@pytest.mark.parametrize(
    ("arguments", "mapping"),
    [
        ('{"city": "Bern", "days": 3}', {"city": "Bern", "days": 3}),
        ('{"where": {"city": "Bern"}, "units": ["C"]}', {"where": {"city": "Bern"}, "units": ["C"]}),
        ({"city": "Bern"}, {"city": "Bern"}),
        ("{}", {}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ('{"city": ', {}),
        ('{"city": "Be', {"city": "Be"}),
        ('{"where": {"city": "Bern"}, "units": ["C", {"in', {"where": {"city": "Bern"}, "units": ["C", {}]}),
        ("[1]", {"arguments": "[1]"}),
        ("{'city': 1}", {"arguments": "{'city': 1}"}),
        ('{"city": 1}}', {"arguments": '{"city": 1}}'}),
        (' {"a": 1}{"b": 2}', {"arguments": ' {"a": 1}{"b": 2}'}),
        ("{}x", {"arguments": "{}x"}),
        (' {"a": {}, "b": "c\\', {"a": {}, "b": "c"}),
        ('{"a": tr', {}),
        ('{"a": 1,', {"a": 1}),
        ("[" * 1000, {"arguments": "[" * 1000}),
    ],
)
def test_arguments_are_a_mapping_in_the_template(chatting: Served, arguments: Any, mapping: dict[str, Any]) -> None:
    answer = chatting.post("/v1/chat/completions", conversation(**call(arguments)))
    assert answer.status_code == 200, answer.text
    expected = by_transformers(chatting, conversation(**call(mapping)))
    assert answer.json()["choices"][0]["message"]["content"] == expected


def test_the_older_form_is_parsed_as_well(chatting: Served) -> None:
    body = conversation(function_call={"name": "f", "arguments": '{"a": 1, "b": 2}'})
    expected = by_transformers(chatting, conversation(function_call={"name": "f", "arguments": {"a": 1, "b": 2}}))
    answer = chatting.post("/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == expected


# As models' own templates ask for calls: an empty list is defined, and its first item isn't.
CALLING = (
    "{% for message in messages %}{{ message.role }}: {% if message.tool_calls is defined %}"
    "{{ message.tool_calls[0].function.name }}{% else %}{{ message.content }}{% endif %}\n{% endfor %}assistant:"
)


@pytest.mark.parametrize(
    "assistant",
    [
        {"content": "It rains.", "tool_calls": []},
        {"content": [{"type": "refusal", "refusal": "It rains."}]},
        {"content": [{"type": "text", "text": "It "}, {"type": "output_text", "text": "rains."}], "tool_calls": None},
        {"content": None, "refusal": "It rains."},
        {"content": "", "refusal": "It rains.", "tool_calls": [], "annotations": [], "audio": None},
        {"content": "It rains.", "refusal": None, "tool_calls": []},
    ],
    ids=lambda each: json.dumps(each)[:50],
)
def test_a_reply_reaches_the_template_in_whatever_form_it_was_kept(assistant: dict[str, Any]) -> None:
    generator = templated(CALLING, "autoregressive")
    plain, kept = conversation(content="It rains."), conversation(**assistant)
    with serving(generator) as running:
        answer = running.post("/v1/chat/completions", kept)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == by_transformers(running, plain)
    expected = generator.tokenizer.apply_chat_template(plain["messages"], tokenize=False)
    ids = generator.tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert encode(kept["messages"], generator.tokenizer, 10**6) == ids


PLACE = "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("assistant", "param"),
    [
        (call(5), PLACE),
        (call([1]), PLACE),
        (call("[" * 100_000), PLACE),
        (call("[" + "[]," * 100_000 + "[]]"), PLACE),
        ({"tool_calls": "f"}, "messages[1].tool_calls"),
        ({"tool_calls": [1]}, "messages[1].tool_calls[0]"),
        ({"tool_calls": [{"id": "1"}]}, "messages[1].tool_calls[0].function"),
        ({"function_call": {"name": "f", "arguments": 5}}, "messages[1].function_call.arguments"),
    ],
    ids=lambda each: json.dumps(each)[:50],
)
def test_what_is_no_mapping_is_refused_with_its_place(chatting: Served, assistant: dict[str, Any], param: str) -> None:
    answer = chatting.post("/v1/chat/completions", conversation(**assistant))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert len(error["message"]) < 300
