"""instructor: an object by each mode that OpenAI's API offers. Prints what it got as JSON."""

import json
import sys
from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODES = "TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "PARALLEL_TOOLS"


class Person(BaseModel):
    name: str
    age: int


def parsed(url: str, mode: str) -> Any:
    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none"), mode=getattr(instructor.Mode, mode))
    options: Any = {
        "model": "demo",
        "messages": [{"role": "user", "content": 'Say: {"name": "Ada", "age": 36}'}],
        "temperature": 0,
        "max_retries": 0,
    }
    if mode == "PARALLEL_TOOLS":
        from collections.abc import Iterable

        return [
            each.model_dump() for each in client.chat.completions.create(response_model=Iterable[Person], **options)
        ]
    return client.chat.completions.create(response_model=Person, **options).model_dump()


print(json.dumps({mode: parsed(sys.argv[1], mode) for mode in MODES}))
