"""/v1/responses through OpenAI's own client, and each event by OpenAI's own types."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.apps.serving.serving import Served, serving
from tests.support.scripted_model import REASONING_TEMPLATE, called, says_or_asks, scripted_chat

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Degrees in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
DEGREES = {"Paris": 21, "Rome": 25}


@pytest.fixture(scope="module")
def chatting() -> Iterator[Served]:
    with serving(scripted_chat(says_or_asks)) as running:
        yield running


@pytest.fixture(scope="module")
def plain(chatting: Served) -> dict[str, Any]:
    """A request of text alone."""
    return {"model": "demo", "input": "Say: hello there, world", "temperature": 0}


def events_of(served: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream's events, each checked: its name, its number, its fields as OpenAI's types have them."""
    found: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{served.url}/v1/responses", json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for block in "".join(response.iter_text()).split("\n\n"):
            if not block:
                continue
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == len(found)
            EVENT.validate_python(event)
            found.append(event)
    return found


def without_ids(value: Any) -> Any:
    """A response without what differs from one to the next."""
    volatile = {"id", "item_id", "call_id", "created_at", "completed_at", "speculation", "cached_tokens"}
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name not in volatile}
    return [*map(without_ids, value)] if isinstance(value, list) else value


def test_a_text_is_answered_whole(chatting: Served, plain: dict[str, Any]) -> None:
    answer = chatting.openai().responses.create(**plain)
    Response.model_validate(answer.to_dict())
    assert answer.output_text == "hello there, world"
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.output_tokens > 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.to_dict()["store"] is False, "the response says that it isn't stored"


def test_the_events_of_a_text_are_in_openais_order(chatting: Served, plain: dict[str, Any]) -> None:
    events = events_of(chatting, plain)
    kinds = [event["type"].removeprefix("response.") for event in events]
    num_deltas = kinds.count("output_text.delta")
    assert num_deltas > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * num_deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event.get("delta", "") for event in events) == "hello there, world"
    assert events[-4]["text"] == "hello there, world"
    whole = chatting.post("/v1/responses", plain).json()
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1


def test_a_text_that_is_cut_is_incomplete(chatting: Served, plain: dict[str, Any]) -> None:
    whole = chatting.openai().responses.create(**plain, max_output_tokens=3)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert "hello there, world".startswith(whole.output_text)
    last = events_of(chatting, {**plain, "max_output_tokens": 3})[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_an_empty_answer_is_an_empty_message(chatting: Served) -> None:
    body = {"model": "demo", "input": "Say: x", "temperature": 0, "logit_bias": {str(end(chatting)): 100}}
    (item,) = chatting.post("/v1/responses", body).json()["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def end(served: Served) -> int:
    return int(served.generator.model.generation_config.eos_token_id)


def test_instructions_and_items_are_the_chats_messages(chatting: Served) -> None:
    client = chatting.openai()
    items: Any = [
        {"role": "developer", "content": "in English"},
        {"type": "message", "role": "user", 
         "content": [{"type": "input_text", "text": "hi, "}, {"type": "input_text", "text": "you"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "yes?", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "f", "arguments": '{"x": 1}',
         "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "one"}]},
        {"role": "user", "content": "Say: done"},
    ]  # fmt: skip
    messages: Any = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "in English"},
        {"role": "user", "content": "hi, you"},
        {"role": "assistant", "content": "yes?", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "user", "content": "Say: done"},
    ]  # fmt: skip
    answer = client.responses.create(model="demo", instructions="be brief", input=items, temperature=0)
    as_chat = client.chat.completions.create(model="demo", messages=messages, temperature=0)
    assert answer.output_text == as_chat.choices[0].message.content == "done"
    assert answer.usage is not None
    assert as_chat.usage is not None
    assert answer.usage.input_tokens == as_chat.usage.prompt_tokens


class Person(BaseModel):
    name: str
    age: int


def test_a_format_is_kept_and_parsed(chatting: Served) -> None:
    said = 'Say: {"name": "Ada", "age": 36}'
    parsed = chatting.openai().responses.parse(model="demo", input=said, temperature=0, text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    with chatting.openai().responses.stream(model="demo", input=said, temperature=0, text_format=Person) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed == Person(name="Ada", age=36)


def test_a_loop_of_tools_ends_with_a_text(chatting: Served) -> None:
    client, turns = chatting.openai(), 0
    items: Any = [{"role": "user", "content": "What is the weather?"}]
    while True:
        answer = client.responses.create(model="demo", input=items, tools=[WEATHER], temperature=0)
        turns += 1
        Response.model_validate(answer.to_dict())
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        items += [item.to_dict() for item in answer.output]
        for call in calls:
            degrees = DEGREES[json.loads(call.arguments)["city"]]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": str(degrees)})
    assert (turns, answer.output_text) == (3, "Paris has 21 degrees, Rome has 25.")


def test_a_call_is_streamed_in_openais_order(chatting: Served) -> None:
    body = {"model": "demo", "input": "What is the weather?", "tools": [WEATHER], "temperature": 0}
    events = events_of(chatting, body)
    kinds = [event["type"].removeprefix("response.") for event in events]
    num_deltas = kinds.count("function_call_arguments.delta")
    assert kinds == [
        "created", "in_progress", "output_item.added", *["function_call_arguments.delta"] * num_deltas,
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    (item,) = events[-1]["response"]["output"]
    deltas = "".join(event["delta"] for event in events if "delta" in event)
    assert json.loads(item["arguments"]) == {"city": "Paris"}
    assert deltas == item["arguments"] == events[-3]["arguments"]
    assert (item["name"], item["status"]) == ("get_weather", "completed")


def test_a_call_cut_by_a_stop_string_is_text(chatting: Served) -> None:
    said: dict[str, Any] = {"model": "demo", "temperature": 0, "stop": ["aris"]}
    body = {**said, "input": "What is the weather?", "tools": [WEATHER]}
    whole = chatting.post("/v1/responses", body).json()
    assert whole["status"] == "completed"
    (item,) = whole["output"]
    text = item["content"][0]["text"]
    assert (item["type"], item["status"]) == ("message", "completed")
    assert text.replace(" ", "").endswith('{"city":"P')
    assert "get_weather" in text
    last = events_of(chatting, body)[-1]
    assert last["type"] == "response.completed"
    assert without_ids(last["response"])["output"] == without_ids(whole)["output"]
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    messages = [{"role": "user", "content": "What is the weather?"}]
    chat = {**said, "messages": messages, "tools": [{"type": "function", "function": function}]}
    (choice,) = chatting.post("/v1/chat/completions", chat).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", text)
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_can_be_required(chatting: Served, choice: Any) -> None:
    tools = [WEATHER, {**WEATHER, "name": "other"}]
    answer = chatting.openai().responses.create(
        model="demo", input="What is the weather?", tools=tools, tool_choice=choice, temperature=0
    )
    assert [item.type for item in answer.output] == ["function_call"]
    assert answer.to_dict()["tool_choice"] == choice


def test_text_before_a_call_and_two_calls_are_items_of_their_own() -> None:
    calls = [called("get_weather", f'{{"city": "{city}"}}') for city in DEGREES]
    with serving(scripted_chat(lambda _: "\n".join(["I'll look.", *calls]))) as talking:
        body = {"model": "demo", "input": "?", "tools": [WEATHER], "temperature": 0}
        events = events_of(talking, body)
        whole = talking.post("/v1/responses", body).json()
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [json.loads(item["arguments"])["city"] for item in output[1:]] == ["Paris", "Rome"]
    assert without_ids(output) == without_ids(whole["output"])
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}


def test_reasoning_is_an_item_that_can_be_passed_back() -> None:
    def reply(conversation: str) -> str:
        return "<think>let me see</think>done" if "<think>let me see</think>" not in conversation else "seen"

    with serving(scripted_chat(reply, REASONING_TEMPLATE)) as thinking:
        body: dict[str, Any] = {"model": "demo", "input": [{"role": "user", "content": "?"}], "temperature": 0}
        events = events_of(thinking, body)
        whole = thinking.post("/v1/responses", body).json()
        Response.model_validate(whole)
        items = [*body["input"], *whole["output"], {"role": "user", "content": "and?"}]
        again = thinking.post("/v1/responses", {**body, "input": items}).json()
    kinds = [event["type"].removeprefix("response.") for event in events]
    num_deltas, num_reasoning = kinds.count("output_text.delta"), kinds.count("reasoning_text.delta")
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", *["reasoning_text.delta"] * num_reasoning,
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", *["output_text.delta"] * num_deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    reasoning, message = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert message["content"][0]["text"] == "done"
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]
    assert again["output"][-1]["content"][0]["text"] == "seen"


def test_log_probabilities_are_those_of_a_chat(chatting: Served, plain: dict[str, Any]) -> None:
    asked = {**plain, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (item,) = chatting.post("/v1/responses", asked).json()["output"]
    chat = chatting.post(
        "/v1/chat/completions",
        {"model": "demo", "messages": [{"role": "user", "content": plain["input"]}], "temperature": 0,
         "logprobs": True, "top_logprobs": 2},
    ).json()  # fmt: skip
    assert item["content"][0]["logprobs"] == chat["choices"][0]["logprobs"]["content"]
    streamed = [event for event in events_of(chatting, asked) if event["type"] == "response.output_text.delta"]
    assert [each for event in streamed for each in event["logprobs"]] == item["content"][0]["logprobs"]


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation"),
        ({"background": True}, "background", "stream"),
        ({"store": True}, "store", "give false"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
        ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"n": 2}, "n", "one text"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"model": "other"}, "model", "does not exist"),
        ({"temperature": 3}, "temperature", "less than"),
        ({"colour": 1}, "colour", "Unrecognized"),
        ({"max_output_tokens": 1 << 20}, "max_output_tokens", "maximum context"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "functions"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 3}]}, "tools[0].parameters", "JSON schema"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "needs tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
         "text.format.schema", "not"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema is needed"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format", "no other type"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"},
         "guided_regex", "text.format and guided_regex are both given"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}},
         "tool_choice.name", "Invalid value for 'tool_choice.name'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "any", "tools": []}},
         "tool_choice", "Invalid value for 'tool_choice'"),
        ({"tools": [WEATHER],
          "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
         "tool_choice.tools[0].name", "Invalid value for 'tool_choice.tools[0].name'"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"input": []}, "input", "neither"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "item itself"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "function_call_output"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0]", "fetches no images"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "developer"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "string"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "[" * 99_999}]},
         "input[0].arguments", "lists and objects"),
    ],
)  # fmt: skip
def test_what_cant_be_done_is_refused_by_name(
    chatting: Served, plain: dict[str, Any], fields: dict[str, Any], param: str, remedy: str
) -> None:
    answer = chatting.post("/v1/responses", {**plain, **fields})
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param, error
    assert remedy in error["message"], error


def test_what_clients_send_without_effect_changes_nothing(chatting: Served, plain: dict[str, Any]) -> None:
    more = {
        "store": False, "background": False, "previous_response_id": None, "truncation": "disabled", "n": 1,
        "include": ["reasoning.encrypted_content"], "prompt_cache_options": {"ttl": "12h"},
        "reasoning": {"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"},
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "metadata": {"a": "b"}, "user": "me",
        "service_tier": "auto", "parallel_tool_calls": True, "max_tool_calls": 3, "tools": [], "tool_choice": "auto",
        "prompt_cache_key": "k", "stream_options": {"include_obfuscation": False}, "proposer": "off", "seed": 3,
    }  # fmt: skip
    answer = chatting.post("/v1/responses", {**plain, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "hello there, world"


def test_a_failure_in_the_middle_ends_the_stream(
    chatting: Served, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe, num_steps = chatting.server.engine._observe, 0

    def fail(*given: Any) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 4:
            raise RuntimeError("planted")
        observe(*given)

    monkeypatch.setattr(chatting.server.engine, "_observe", fail)
    last = events_of(chatting, {**plain, "proposer": "off"})[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert "planted" in last["response"]["error"]["message"]


def test_errors_are_the_clients_own_kinds(chatting: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="whole conversation"):
        chatting.openai().responses.create(model="demo", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        chatting.openai().responses.retrieve("resp_1")
