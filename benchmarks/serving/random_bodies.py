"""Random requests with tools and constraints: no answer is an error of the server's, and each one is valid.

    specdec serve --model demo --tool-parser hermes --port 8000
    python -m benchmarks random_bodies http://localhost:8000 [--num 2000] [--seed 0] [--limit 30]

Half of the bodies have a spoiled field: a wrong type, a keyword that can't be enforced, or deep nesting. The command
prints the number of answers by status, and each failure: a status of 500 or above, an answer later than the limit, or
one that isn't valid under its schema.
"""

import argparse
import json
import random
import time
from collections import Counter
from typing import Any

import httpx
import jsonschema

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


def body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a path and a random body."""
    is_chat = rng.random() < 0.8
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
    if rng.random() < 0.5:
        spoil(rng, made)
    return "/v1/chat/completions" if is_chat else "/v1/completions", made


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


def fault_of(sent: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return what is wrong with an answer that isn't streamed; "" if nothing is."""
    wanted = sent.get("response_format") or {}
    for choice in answer["choices"]:
        message = choice.get("message", {})
        calls, content = message.get("tool_calls", []), message.get("content", choice.get("text"))
        if choice["finish_reason"] == "length":
            continue
        for call in calls:
            tools = {tool["function"]["name"]: tool["function"] for tool in sent["tools"]}
            parameters = tools[call["function"]["name"]].get("parameters")
            jsonschema.validate(json.loads(call["function"]["arguments"]), {} if parameters is None else parameters)
        if not calls and sent.get("tool_choice") not in (None, "auto", "none") and sent.get("tools"):
            return "no call"
        definition = wanted.get("json_schema", {}).get("schema") if isinstance(wanted, dict) else None
        if not calls and definition is not None and choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(content), definition)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one answer")
    arguments = parser.parse_args()
    rng, statuses, num_failures, longest = random.Random(arguments.seed), Counter[int](), 0, 0.0
    with httpx.Client(base_url=arguments.url, timeout=arguments.limit) as client:
        for number in range(arguments.num):
            path, made = body(rng)
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
            statuses[status] += 1
            longest = max(longest, time.perf_counter() - began)
            if fault:
                num_failures += 1
                print(number, status, fault, json.dumps(made)[:1000], sep="\n  ", flush=True)
    print(f"answers by status: {dict(statuses)}; {num_failures} failures; the longest took {longest:.1f} s")
    return 1 if num_failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
