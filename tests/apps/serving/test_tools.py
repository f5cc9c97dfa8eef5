"""Tool calls by OpenAI's own client, streamed and not: always of a given tool, with arguments that are valid."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from specdec import Generator
from tests.apps.serving.serving import Served, serving
from tests.support.chat_models import DEEPSEEK, HARMONY, chat_tokenizer, random_model

pytest.importorskip("llguidance")

CITY = {"enum": ["Bern", "Łódź"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "get": {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False},
}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in SCHEMAS.items()]
HERMES = "<tool_call>", "</tool_call>"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hermes": ("{# <tool_call> #}", {"added": HERMES}),
    "mistral": ("{# [TOOL_CALLS] #}", {"special": ["[TOOL_CALLS]"]}),
    "mistral_args": ("{# [TOOL_CALLS][ARGS] #}", {"special": ["[TOOL_CALLS]", "[ARGS]"]}),
    "deepseek_v31": ("{# <｜tool▁calls▁begin｜> #}", {"added": DEEPSEEK}),
    "llama3_json": ("{# <|python_tag|> #}", {"special": ["<|python_tag|>"]}),
    "gpt_oss": ("<|start|>assistant{# <|channel|><|message|> #}", {"special": HARMONY}),
    "unknown": ("", {}),
}
MARKERS = {
    "hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "mistral_args": "[TOOL_CALLS]",
    "deepseek_v31": "<｜tool▁calls▁begin｜>", "llama3_json": "{",
}  # fmt: skip
ASKED: Any = {"model": "demo", "messages": [{"role": "user", "content": "Will it rain?"}], "max_tokens": 200}


@pytest.fixture(scope="module", params=MODELS)
def chatting(request: pytest.FixtureRequest) -> Iterator[Served]:
    end, markers = MODELS[request.param]
    tokenizer = chat_tokenizer(end, **markers)
    with serving(Generator(random_model(tokenizer), tokenizer, proposer="auto")) as running:
        yield running


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get"}}])
def test_a_random_model_calls_a_tool_if_it_must(chatting: Served, choice: Any) -> None:
    client, num_ended = chatting.openai(), 0
    for seed in range(2):
        options = {**ASKED, "seed": seed, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        answer = client.chat.completions.create(**options).choices[0]
        if answer.finish_reason == "length":  # the analysis of gpt-oss
            continue
        num_ended += 1
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls
        check(call.function.name, call.function.arguments)
        assert choice == "required" or call.function.name == "get"
    assert num_ended == 2 or "channel" in chatting.generator.tokenizer.chat_template


def is_cut(arguments: str) -> bool:
    try:
        return not json.loads(arguments)
    except ValueError:
        return True


def test_a_call_that_was_cut_is_accepted_as_history(chatting: Served, request: pytest.FixtureRequest) -> None:
    choice, question, num_cut = {"type": "function", "function": {"name": "get_weather"}}, ASKED["messages"], 0
    named, tools = {"type": "function", "name": "get_weather"}, [{"type": "function", **TOOLS[0]["function"]}]
    for most in (14, 42, 70):
        asked = {**ASKED, "tools": TOOLS[:1], "tool_choice": choice, "max_tokens": most, "seed": 1}
        message = chatting.post("/v1/chat/completions", asked).json()["choices"][0]["message"]
        for call in filter(lambda call: is_cut(call["function"]["arguments"]), message.get("tool_calls") or ()):
            num_cut += 1
            result = {"role": "tool", "tool_call_id": call["id"], "content": "cut"}
            asked |= {"messages": [*question, message, result], "max_tokens": 1, "tool_choice": "none"}
            answer = chatting.post("/v1/chat/completions", asked)
            assert answer.status_code == 200, answer.text
        body = {"model": "demo", "input": question, "tools": tools, "tool_choice": named, "max_output_tokens": most}
        output = chatting.post("/v1/responses", body).json()["output"]
        answer = chatting.post("/v1/responses", {**body, "input": [*question, *output], "tool_choice": "none"})
        assert answer.status_code == 200, answer.text
    assert num_cut or request.node.callspec.params["chatting"] == "gpt_oss"


def test_streamed_parts_are_the_whole_answer(chatting: Served) -> None:
    client = chatting.openai()
    for options in ({"tool_choice": "required", "seed": 1}, {"tool_choice": "auto", "seed": 2, "max_tokens": 40}):
        whole = client.chat.completions.create(**{**ASKED, "tools": TOOLS, **options}).choices[0]
        content, calls, reasons = "", list[dict[str, str]](), list[str]()
        for part in client.chat.completions.create(**{**ASKED, "tools": TOOLS, **options}, stream=True):
            (choice,) = part.choices
            reasons += [choice.finish_reason] if choice.finish_reason else []
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.id:
                    assert call.type == "function"
                    assert call.index == len(calls)
                    calls.append({"name": call.function.name, "arguments": ""})
                assert call.index == len(calls) - 1
                calls[-1]["arguments"] += call.function.arguments or ""
        assert reasons == [whole.finish_reason]
        assert content == (whole.message.content or "")
        assert calls == [
            {"name": call.function.name, "arguments": call.function.arguments}
            for call in whole.message.tool_calls or ()
        ]


def test_calls_of_an_automatic_choice_are_valid(chatting: Served, request: pytest.FixtureRequest) -> None:
    """A bias makes the marker of calls likely, so that a random model begins some."""
    tokenizer, marker = chatting.generator.tokenizer, MARKERS.get(request.node.callspec.params["chatting"], "x")
    (token,) = tokenizer(marker, add_special_tokens=False)["input_ids"]
    num_calls = 0
    for seed in range(2):
        options = {**ASKED, "seed": seed, "tools": TOOLS, "logit_bias": {str(token): 20}, "max_tokens": 120}
        answer = chatting.openai().chat.completions.create(**options).choices[0]
        calls = answer.message.tool_calls or []
        for call in calls[: None if answer.finish_reason == "tool_calls" else -1]:
            check(call.function.name, call.function.arguments)
            num_calls += 1
        assert marker not in (answer.message.content or "x") or marker == "x"
    assert num_calls or marker == "x"


def test_a_stop_string_within_a_call_leaves_its_text_as_content(chatting: Served) -> None:
    client, named = chatting.openai(), {"type": "function", "function": {"name": "get_weather"}}
    options = {**ASKED, "tools": TOOLS, "tool_choice": named, "stop": ['"days"'], "seed": 1}
    end = chatting.generator.tokenizer.get_vocab().get("<|end|>")  # of the analysis of gpt-oss
    if end is not None:
        options["logit_bias"] = {str(end): 20}
    whole = client.chat.completions.create(**options).choices[0]
    streamed, content = "", whole.message.content or ""
    for part in client.chat.completions.create(**options, stream=True):
        assert not part.choices[0].delta.tool_calls
        streamed += part.choices[0].delta.content or ""
    assert (whole.finish_reason, whole.message.tool_calls) == ("stop", None)
    assert '{"city": ' in content
    assert "get_weather" in content
    assert streamed == content


def test_a_choice_of_no_tools_constrains_nothing(chatting: Served) -> None:
    options = {**ASKED, "max_tokens": 12, "seed": 3, "temperature": 0}
    none = chatting.openai().chat.completions.create(**options, tools=TOOLS, tool_choice="none").choices[0]
    plain = chatting.openai().chat.completions.create(**options).choices[0]
    assert none.message == plain.message
    assert none.message.tool_calls is None
    assert none.finish_reason == "length"


@pytest.fixture(scope="module")
def weather() -> Iterator[Served]:
    tokenizer = chat_tokenizer("{# <tool_call> #}")
    with serving(Generator(random_model(tokenizer), tokenizer, proposer="autoregressive")) as running:
        yield running


def test_a_loop_of_three_turns(weather: Served) -> None:
    client, messages = weather.openai(), [*ASKED["messages"]]
    for turn in range(3):
        answer = client.chat.completions.create(
            model="demo", messages=messages, max_tokens=150, seed=turn, tools=TOOLS, tool_choice="required",
            parallel_tool_calls=False,
        ).choices[0].message  # fmt: skip
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls or ():
            check(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    assert len(messages) == 7
    last = client.chat.completions.create(
        model="demo", messages=messages, max_tokens=4, tools=TOOLS, tool_choice="none", seed=3,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].message.content


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [1]}, "tools[0]", "dictionary"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "functions are the only tools"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "a name and parameters"),
    (function(name="a b"), "tools[0].function.name", "letters"),
    ({"tools": [*TOOLS, *TOOLS[:1]]}, "tools[2].function.name", "an earlier tool"),
    ({"tools": TOOLS * 65}, "tools", "130 tools"),
    (function(parameters=[]), "tools[0].function.parameters", "a JSON schema"),
    (function(parameters={"type": "array"}), "tools[0].function.parameters.type", 'must be "object"'),
    (function(strict="yes"), "tools[0].function.strict", "true or false"),
    (
        function(parameters=UNIQUE, strict=True), "tools[0].function.parameters",
        "#/properties/a: the keyword 'uniqueItems' can't be enforced (with \"strict\": false, it isn't enforced).",
    ),
    (
        {"tools": [*TOOLS, *function(parameters={"properties": {"a": {"pattern": "(?=a)"}}}, strict=True)["tools"]]},
        "tools[2].function.parameters", "(with \"strict\": false, it isn't enforced)",
    ),
    ({**function(), "tool_choice": "any"}, "tool_choice", "required"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    (
        {**function(), "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name", "no tool is named 'g'",
    ),
    (
        {**function(), "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}},
        "tool_choice.allowed_tools", "mode",
    ),
    ({**function(), "min_tokens": 3}, "min_tokens", "constraint"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED)
def test_invalid_tools_are_refused_with_their_place(
    weather: Served, fields: dict[str, Any], param: str, reason: str
) -> None:
    answer = weather.post("/v1/chat/completions", {**ASKED, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]


# By one keyword each that can't be enforced: refused by specdec, by the library, and for digits or names.
UNENFORCED: list[dict[str, Any]] = [
    UNIQUE["properties"]["a"],
    {"not": {"type": "string"}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "string", "pattern": "(?=a)"},
    {"enum": [1234567890123456789]},
    {"type": "object", "minProperties": 2},
]


@pytest.mark.parametrize(
    ("schema", "strict"),
    [*((schema, {}) for schema in UNENFORCED), *((UNENFORCED[0], {"strict": value}) for value in (None, False))],
    ids=str,
)
def test_a_tool_that_is_not_strict_is_offered_without_its_schema_if_it_must(
    weather: Served, strict: dict[str, Any], schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"type": "object", "title": str(strict), "properties": {"a": schema}}  # none that was compiled before
    tool = function(parameters=parameters, **strict)["tools"]
    options = {**ASKED, "tools": [*TOOLS, *tool], "max_tokens": 300, "parallel_tool_calls": False}
    assert weather.post("/v1/chat/completions", {**options, "max_tokens": 4}).status_code == 200
    for name in ("f", "get"):  # the other tools are enforced
        choice = {"type": "function", "function": {"name": name}}
        response = weather.post("/v1/chat/completions", {**options, "tool_choice": choice, "seed": 1})
        assert response.status_code == 200, response.text
        (call,) = response.json()["choices"][0]["message"]["tool_calls"]
        if name == "get":
            check(name, call["function"]["arguments"])
        elif response.json()["choices"][0]["finish_reason"] == "tool_calls":
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    records = [each for each in caplog.records if getattr(each, "event", "") == "schema_not_enforced"]
    assert records
    assert all("refused" in each.reason for each in records)


def test_tools_of_responses_are_strict_by_default(weather: Served) -> None:
    body = {"model": "demo", "input": "Will it rain?", "max_output_tokens": 4}
    tool = {"type": "function", "name": "f", "parameters": UNIQUE}
    for strict in ({}, {"strict": None}, {"strict": True}):
        error = weather.post("/v1/responses", {**body, "tools": [tool | strict]}).json()["error"]
        assert error["param"] == "tools[0].parameters"
        assert "uniqueItems" in error["message"]
        assert '"strict": false' in error["message"]
    assert weather.post("/v1/responses", {**body, "tools": [{**tool, "strict": False}]}).status_code == 200


def test_of_allowed_tools_one_is_called(weather: Served) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = weather.post(
        "/v1/chat/completions",
        {**ASKED, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "seed": 1},
    ).json()["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["get"]
    assert answer["message"]["content"] is None


def test_several_calls_in_one_answer(weather: Served) -> None:
    (separator,) = weather.generator.tokenizer("\n", add_special_tokens=False)["input_ids"]
    options = {**ASKED, "tools": TOOLS, "tool_choice": "required", "logit_bias": {str(separator): 20}}
    answer = weather.post("/v1/chat/completions", {**options, "max_tokens": 400}).json()["choices"][0]
    calls = answer["message"]["tool_calls"]
    for call in calls[:-1]:
        check(call["function"]["name"], call["function"]["arguments"])
    assert len({call["id"] for call in calls}) == len(calls) > 1
    assert answer["finish_reason"] == "length"
    assert answer["message"]["content"] is None


def test_a_call_that_is_cut_has_its_first_part(weather: Served) -> None:
    options = {**ASKED, "tools": TOOLS[:1], "tool_choice": "required", "seed": 1, "parallel_tool_calls": False}
    whole = weather.post("/v1/chat/completions", options).json()
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    cut = weather.post(
        "/v1/chat/completions", {**options, "max_tokens": whole["usage"]["completion_tokens"] - 16}
    ).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    (part,) = cut["message"]["tool_calls"]
    assert part["function"]["name"] == call["function"]["name"]
    assert call["function"]["arguments"].startswith(part["function"]["arguments"])
    assert 0 < len(part["function"]["arguments"]) < len(call["function"]["arguments"])
