"""litellm: parsed output, tools, reasoning effort, streams and responses. Prints what it got as JSON."""

import json
import os
import sys
from typing import Any

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would be fetched

import litellm
from pydantic import BaseModel

SAID = [{"role": "user", "content": 'Say: {"name": "Ada", "age": 36}'}]
WEATHER = {
    "name": "get_weather",
    "description": "Degrees in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
DEGREES = {"Paris": "21", "Rome": "25"}


class Person(BaseModel):
    name: str
    age: int


def agent(options: dict[str, Any]) -> list[Any]:
    """The last text, and the number of calls before it."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather?"}]
    tools, num_calls = [{"type": "function", "function": WEATHER}], 0
    while True:
        message = litellm.completion(messages=messages, tools=tools, **options).choices[0].message
        if not message.tool_calls:
            return [message.content, num_calls]
        messages.append(message)
        for call in message.tool_calls:
            num_calls += 1
            degrees = DEGREES[json.loads(call.function.arguments)["city"]]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": degrees})


def main(url: str) -> None:
    options: dict[str, Any] = {
        "model": "openai/demo", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "num_retries": 0
    }  # fmt: skip
    hello = [{"role": "user", "content": "Say: hello there"}]
    parsed = litellm.completion(messages=SAID, response_format=Person, **options)
    some = litellm.completion(messages=SAID, response_format={"type": "json_object"}, **options)
    parts = litellm.completion(messages=hello, stream=True, **options)
    response = litellm.responses(input="Say: hello there", **options)
    events = litellm.responses(input="Say: hello there", stream=True, **options)
    effort = litellm.completion(messages=hello, reasoning_effort="low", drop_params=True, **options)
    found = {
        "parsed": json.loads(parsed.choices[0].message.content),
        "json_object": json.loads(some.choices[0].message.content),
        "stream": "".join(part.choices[0].delta.content or "" for part in parts),
        "text": litellm.text_completion(prompt="hello", max_tokens=2, **options).choices[0].finish_reason,
        "responses": response.output[0].content[0].text,
        "responses stream": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
        "reasoning effort": effort.choices[0].message.content,
        "agent": agent(options),
    }
    print(json.dumps(found))


main(*sys.argv[1:])
