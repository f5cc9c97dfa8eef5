"""Random requests with tools and constraints: no answer is an error of the server's, and each one is valid.

    specdec serve --model demo --tool-parser hermes --port 8000
    python -m benchmarks random_bodies http://localhost:8000 [--num 2000] [--seed 0] [--limit 30]

Bodies of /v1/chat/completions, /v1/completions and /v1/responses are sent in turn. Half of them have a spoiled field: a
wrong type, a keyword that can't be enforced, or deep nesting. The command prints the number of answers by path and
status, and each failure: a status of 500 or above, an answer later than the limit, or one that isn't valid under its
schema.
"""

import argparse
import copy
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema

CHAT, COMPLETIONS, RESPONSES = PATHS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ITEMS: list[Any] = [  # of a conversation
    {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "a", "name": "f_0", "arguments": '{"name": 1}'},
    {"type": "function_call_output", "call_id": "a", "output": "x"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I", "annotations": []}]},
]
KEYS = ["name", "größe", "a b", 'q"', "日付", "x/y~", "n"]
SPOILED: list[Any] = [
    None, True, -1, 1e300, "", "x" * 5000, [], {}, [[]], {"type": "object"}, "\ud800", "\x00", {"a": {"b": [{}] * 50}},
    {"not": {}}, {"type": "array", "uniqueItems": True}, {"multipleOf": 249_989}, {"pattern": "(a|b){500}c{1000}"},
    {"$ref": "#"}, {"type": "string", "maxLength": 100_000}, {"enum": []}, {"required": ["zz"]}, [1, "a", None],
]  # fmt: skip


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a random JSON schema, mostly one that can be enforced."""
    kind = rng.randrange(9 if depth else 6)
    low = rng.randint(-9, 9)
    simple: list[dict[str, Any]] = [
        {"type": "string", "maxLength": rng.randint(0, 6)},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 99)},
        {"enum": rng.sample(["red", "ünï", 3, None, True, "two words"], rng.randint(1, 3))},
        {"type": ["boolean", "null"]},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$", "maxLength": 7},
        {"const": {"a": [1, "b"]}},
    ]
    if kind < len(simple):
        return simple[kind]
    if kind == 6:
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": rng.randint(0, 1), "maxItems": 2}
    if kind == 7:
        return {"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}
    return of_object(rng, depth)


def of_object(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a random schema of objects."""
    properties = {key: schema(rng, depth - 1) for key in rng.sample(KEYS, rng.randint(0, 3))}
    required = [key for key in properties if rng.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def body(rng: random.Random, path: str) -> dict[str, Any]:
    """Return a random body for a path."""
    is_chat = path != COMPLETIONS
    made: dict[str, Any] = {"model": "demo", "max_tokens": rng.randint(1, 48), "temperature": rng.choice([0, 0.7, 1])}
    made |= {"messages": [{"role": "user", "content": "Who?"}]} if is_chat else {"prompt": rng.choice(["x", [5, 6]])}
    kinds: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": of_object(rng)}}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": schema(rng)}},
        {"structured_outputs": {"regex": rng.choice(["[a-c]{3}x?", "(ab|c)*", "\\d+(\\.\\d+)?"])}},
        {"guided_choice": rng.sample(["left", "right", "a b", "ü"], rng.randint(1, 3))},
        {"structured_outputs": {"grammar": rng.choice(['start: "a" /[0-9]+/', 'root ::= "a" | "b" root'])}},
        {},
    ]
    made |= rng.choice(kinds)
    if is_chat and rng.random() < 0.6:
        made["tools"] = [
            {"type": "function", "function": {"name": f"f_{number}", "parameters": of_object(rng)}}
            for number in range(rng.randint(1, 3))
        ]
        named = {"type": "function", "function": {"name": "f_0"}}
        made["tool_choice"] = rng.choice(["auto", "none", "required", named])
        made["parallel_tool_calls"] = rng.random() < 0.5
    if rng.random() < 0.3:
        made["stream"] = True
    if rng.random() < 0.2:
        made["stop"] = rng.choice([['"'], ["}", "1"], ["f_"]])
    if path == RESPONSES:
        made = as_response(rng, made)
    if rng.random() < 0.5:
        spoil(rng, made)
    return made


def as_response(rng: random.Random, chat: dict[str, Any]) -> dict[str, Any]:
    """Return a body of a chat as one of /v1/responses."""
    made = {name: value for name, value in chat.items() if name not in ("messages", "max_tokens", "response_format")}
    made["input"] = rng.choice(["Who?", ITEMS[: rng.randint(1, len(ITEMS))], ITEMS[:1]])
    made["max_output_tokens"] = chat["max_tokens"]
    if wanted := chat.get("response_format"):
        made["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    if "tools" in chat:
        made["tools"] = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
        choice = chat["tool_choice"]
        made["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "name": "f_0"}
    if rng.random() < 0.3:
        made |= {"instructions": "Be brief.", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    return copy.deepcopy(made)


def spoil(rng: random.Random, made: dict[str, Any]) -> None:
    """Replace a random value of a body, or add a field to it."""
    at: Any = made
    while True:
        keys = [*at] if isinstance(at, dict) else [*range(len(at))]
        key = rng.choice(keys) if keys and rng.random() < 0.9 else "tools" if isinstance(at, dict) else 0
        inner = at[key] if key in keys else None
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            break
        at = inner
    if isinstance(at, dict) or keys:
        at[key] = rng.choice(SPOILED)


@dataclass
class Written:
    """What a text of an answer says.

    Attributes:
        is_cut: True at the maximum length.
        calls: the functions and their arguments.
    """

    content: str
    is_cut: bool
    calls: list[dict[str, Any]]


def texts_of(answer: dict[str, Any]) -> list[Written]:
    """Return the texts of an answer that isn't streamed."""
    if answer["object"] == "response":
        items = answer["output"]
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        calls = [item for item in items if item["type"] == "function_call"]
        return [Written("".join(part["text"] for part in parts), answer["status"] == "incomplete", calls)]
    texts = []
    for choice in answer["choices"]:
        message = choice.get("message", {"content": choice.get("text")})
        calls = [call["function"] for call in message.get("tool_calls", [])]
        texts.append(Written(message["content"] or "", choice["finish_reason"] == "length", calls))
    return texts


def fault_of(sent: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return what is wrong with an answer that isn't streamed; "" if nothing is."""
    wanted = sent.get("response_format") or {}
    definition = wanted.get("json_schema", {}).get("schema") if isinstance(wanted, dict) else None
    if isinstance(sent.get("text"), dict):
        definition = (sent["text"].get("format") or {}).get("schema")
    for text in texts_of(answer):
        if text.is_cut:
            continue
        for call in text.calls:
            tools = {tool["name"]: tool for tool in (each.get("function", each) for each in sent["tools"])}
            parameters = tools[call["name"]].get("parameters")
            jsonschema.validate(json.loads(call["arguments"]), {} if parameters is None else parameters)
        if sent.get("stop"):  # which cuts texts anywhere, and leaves what it cuts of a call as content
            continue
        if not text.calls and sent.get("tool_choice") not in (None, "auto", "none") and sent.get("tools"):
            return "no call"
        if not text.calls and definition is not None:
            jsonschema.validate(json.loads(text.content), definition)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one answer")
    arguments = parser.parse_args()
    rng, statuses = random.Random(arguments.seed), Counter[tuple[str, int]]()
    num_failures, longest = 0, 0.0
    with httpx.Client(base_url=arguments.url, timeout=arguments.limit) as client:
        for number in range(arguments.num):
            path = PATHS[number % len(PATHS)]
            made = body(rng, path)
            headers, began, status, fault = {"Content-Type": "application/json"}, time.perf_counter(), 0, ""
            try:
                answer = client.post(path, content=json.dumps(made), headers=headers)
                status = answer.status_code
                if status >= 500 or '"server_error"' in answer.text:
                    fault = answer.text[:300]
                elif status == 200 and made.get("stream") is not True:
                    fault = fault_of(made, answer.json())
            except Exception as error:
                fault = f"{type(error).__name__}: {str(error)[:300]}"
            statuses[path, status] += 1
            longest = max(longest, time.perf_counter() - began)
            if fault:
                num_failures += 1
                print(number, path, status, fault, json.dumps(made)[:1000], sep="\n  ", flush=True)
    for path in PATHS:
        print(path, {status: count for (at, status), count in sorted(statuses.items()) if at == path})
    print(f"{num_failures} failures; the longest took {longest:.1f} s")
    return 1 if num_failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
