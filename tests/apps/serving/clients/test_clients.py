"""Clients that nobody here wrote, untouched, each in an environment of its own (``make clients``)."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from specdec import Generator, demo
from tests.apps.serving.clients.environments import FOLDER, command
from tests.apps.serving.serving import Served, serving
from tests.support.scripted_model import says_or_asks, scripted_chat

HERE = Path(__file__).parent
ADA = {"name": "Ada", "age": 36}
WEATHER = "Paris has 21 degrees, Rome has 25."


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    with serving(scripted_chat(says_or_asks)) as running:
        yield running


def run(client: str, *arguments: str, script: Path | None = None) -> Any:
    """What a client's script prints; a skip without its environment."""
    prefix = command(client)
    if prefix is None:
        pytest.skip(f"{client} isn't installed: make clients")
    whole = [*prefix, str(script or HERE / f"use_{client}.py"), *arguments]
    done = subprocess.run(whole, capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    """Degrees in a city."""

    city: str


def test_openais_python(scripted: Served) -> None:
    """In this environment; the rest of it is in ``test_openai_client.py`` and ``test_responses_api.py``."""
    client, said = scripted.openai(), f"Say: {json.dumps(ADA)}"
    parsed = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": said}], response_format=Person, temperature=0
    )
    assert parsed.choices[0].message.parsed == Person(**ADA)
    tool: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    messages: Any = [{"role": "user", "content": "What is the weather?"}]
    for _ in range(2):
        choice = client.chat.completions.parse(model="demo", messages=messages, tools=[tool], temperature=0).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        asked = call.function.parsed_arguments
        assert isinstance(asked, GetWeather)
        result = {"role": "tool", "tool_call_id": call.id, "content": {"Paris": "21", "Rome": "25"}[asked.city]}
        messages += [choice.message.to_dict(), result]
    last = client.chat.completions.create(model="demo", messages=messages, tools=[tool], temperature=0).choices[0]
    assert (last.message.content, last.finish_reason) == (WEATHER, "stop")


def test_openais_javascript(scripted: Served, tmp_path: Path) -> None:
    if command("js") is not None:
        (tmp_path / "node_modules").symlink_to(
            FOLDER / "js" / "node_modules"
        )  # modules are looked for beside the script
    script = shutil.copy(HERE / "use_openai.mjs", tmp_path)
    found = run("js", scripted.url, script=Path(script))
    assert found["parsed"] == ADA
    assert (found["num_calls"], found["told"]) == (2, WEATHER)
    assert found["kinds"] == [
        f"response.{kind}"
        for kind in (
            "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done", "completed",
        )
    ]  # fmt: skip
    assert found["streamed"] == "hello"
    assert found["arguments"] == {"city": "Paris"}


def test_instructor(scripted: Served) -> None:
    found = run("instructor", scripted.url)
    assert found.pop("PARALLEL_TOOLS") == [ADA]
    assert found == dict.fromkeys(("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA"), ADA)


@pytest.mark.parametrize(
    ("client", "methods", "agent"),
    [
        ("langchain", ("json_schema", "function_calling", "json_mode"), [WEATHER, 2]),
        ("pydantic_ai", ("ToolOutput", "NativeOutput", "PromptedOutput"), WEATHER),
    ],
)
def test_frameworks_of_agents(scripted: Served, client: str, methods: tuple[str, ...], agent: Any) -> None:
    found = run(client, scripted.url)
    for api in ("chat", "responses"):
        assert found[f"{api} text"] == "hello"
        assert found[f"{api} stream"] == "hello there"
        for method in methods:
            assert found[f"{api} {method}"] == ADA, (api, method)
        assert found[f"{api} agent"] == agent


def test_litellm(scripted: Served) -> None:
    assert run("litellm", scripted.url) == {
        "parsed": ADA,
        "json_object": ADA,
        "stream": "hello there",
        "text": "stop",
        "responses": "hello there",
        "responses stream": "hello there",
        "reasoning effort": "hello there",
        "agent": [WEATHER, 2],
    }


def test_lm_evals_scores_are_those_of_its_own_backend(tmp_path: Path) -> None:
    model, tokenizer = demo.load()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with serving(Generator(model, tokenizer)) as served:
        found = run("lm_eval", served.url, "demo", str(tmp_path))
    for task in ("choices", "perplexity"):
        served_scores, own = (json.dumps(found[whose][task]) for whose in ("served", "own"))
        assert numbers(json.loads(served_scores)) == pytest.approx(numbers(json.loads(own)), abs=1e-3)
    assert found["served"]["writing"] == found["own"]["writing"]


def numbers(value: Any) -> list[float]:
    """All numbers of nested lists; true is 1."""
    return [number for each in value for number in numbers(each)] if isinstance(value, list) else [float(value)]
