"""LangChain: structured output by each method, and agents, by both of OpenAI's APIs. Prints what it got as JSON."""

import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

SAID = 'Say: {"name": "Ada", "age": 36}'


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Degrees in a city."""
    return {"Paris": "21", "Rome": "25"}[city]


def main(url: str) -> None:
    found: dict[str, Any] = {}
    for api in ("chat", "responses"):
        model = ChatOpenAI(
            base_url=f"{url}/v1", api_key="none", model="demo", temperature=0, use_responses_api=api == "responses"
        )
        found[f"{api} text"] = model.invoke("Say: hello").text
        found[f"{api} stream"] = "".join(part.text for part in model.stream("Say: hello there"))
        for method in ("json_schema", "function_calling", "json_mode"):
            structured = model.with_structured_output(Person, method=method)
            found[f"{api} {method}"] = structured.invoke(SAID).model_dump()
        agent = create_agent(model, [get_weather])
        messages = agent.invoke({"messages": [{"role": "user", "content": "What is the weather?"}]})["messages"]
        found[f"{api} agent"] = [messages[-1].text, sum(message.type == "tool" for message in messages)]
    print(json.dumps(found))


main(*sys.argv[1:])
