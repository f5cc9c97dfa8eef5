"""pydantic-ai: each kind of output, and an agent with a tool, by both of OpenAI's APIs. Prints what it got as JSON."""

import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SAID = 'Say: {"name": "Ada", "age": 36}'


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Degrees in a city."""
    return {"Paris": "21", "Rome": "25"}[city]


def main(url: str) -> None:
    provider, found = OpenAIProvider(base_url=f"{url}/v1", api_key="none"), dict[str, Any]()
    for api, kind in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        model = kind("demo", provider=provider, settings={"temperature": 0.0})
        found[f"{api} text"] = Agent(model).run_sync("Say: hello").output
        for output in (ToolOutput, NativeOutput, PromptedOutput):
            agent: Any = Agent(model, output_type=output(Person), retries=0)
            found[f"{api} {output.__name__}"] = agent.run_sync(SAID).output.model_dump()
        found[f"{api} agent"] = Agent(model, tools=[get_weather]).run_sync("What is the weather?").output
        streamed = Agent(model).run_stream_sync("Say: hello there")
        found[f"{api} stream"] = "".join(streamed.stream_text(delta=True))
    print(json.dumps(found))


main(*sys.argv[1:])
