"""What clients get of a text: its first space, tokens' places and bytes, special tokens, and nothing held back."""

import copy
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from specdec import Generator, ToyModel
from tests.apps.serving.serving import Served, serving
from tests.support.tokenizers_of_kinds import CHANNEL, END, ids_of, llama

NEW = "▁a", "bytes:🦙東", CHANNEL, "▁time", END


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server whose model goes on with ``NEW``, whatever the prompt is, and then ends."""
    script = ids_of(llama(), *NEW)
    last = ids_of(llama(), "▁upon")[0]

    def law(context: tuple[int, ...]) -> list[float]:
        count = len(context) - 1 - max((place for place, token in enumerate(context) if token == last), default=0)
        return [float(token == script[min(count, len(script) - 1)]) for token in range(len(llama()))]

    tokenizer = copy.deepcopy(llama())
    tokenizer.chat_template = "{{ messages[0].content }}"
    generator = Generator(ToyModel(law, len(llama())), tokenizer, proposer="autoregressive")
    with serving(generator, name="demo") as running:
        yield running


def complete(served: Served, **body: Any) -> Any:
    answer = served.post("/v1/completions", {"model": "demo", "prompt": "once upon", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(served: Served, **body: Any) -> list[Any]:
    given = {"model": "demo", "prompt": "once upon", "temperature": 0, "stream": True, **body}
    lines = served.post("/v1/completions", given).text.split("\n\n")
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [part["choices"][0] for part in parts if part["choices"]]


MOST = {"max_tokens": len(ids_of(llama(), *NEW))}


def test_texts_begin_with_their_space_streamed_and_not(served: Served) -> None:
    assert complete(served, **MOST)["text"] == " a🦙東 time"
    assert "".join(part["text"] for part in streamed(served, **MOST)) == " a🦙東 time"
    assert complete(served, **MOST, stop=" a")["text"] == ""
    assert complete(served, **MOST, stop=" time")["finish_reason"] == "stop"


def test_tokens_of_one_character_have_one_offset_and_their_own_bytes(served: Served) -> None:
    told = complete(served, **MOST, logprobs=2)["logprobs"]
    offsets = [0, *[2] * 4, *[3] * 3, 4, 4, 9]
    assert told["text_offset"] == offsets
    parts = [part["logprobs"] for part in streamed(served, **MOST, logprobs=2)]
    assert [offset for part in parts for offset in part["text_offset"]] == offsets
    text = complete(served, **MOST)["text"]
    for token, (start, end) in zip(told["tokens"], pairwise(offsets), strict=False):
        assert start == end or token in {CHANNEL, END, "\N{REPLACEMENT CHARACTER}"} or token == text[start:end]


def test_chat_gives_the_bytes_of_each_token(served: Served) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "once upon"}], "temperature": 0}
    answer = served.post("/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 1, "max_tokens": 8})
    choice = answer.json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    assert [len(entry["bytes"]) for entry in entries] == [2, *[1] * 7]
    assert all(entry["bytes"] == entry["top_logprobs"][0]["bytes"] for entry in entries)


def test_special_tokens_come_where_they_are_wanted_and_can_stop_a_text(served: Served) -> None:
    whole = f" a🦙東{CHANNEL} time{END}"
    assert complete(served, **MOST, skip_special_tokens=False)["text"] == whole
    assert "".join(part["text"] for part in streamed(served, **MOST, skip_special_tokens=False)) == whole
    assert complete(served, **MOST, skip_special_tokens=True)["text"] == " a🦙東 time"
    assert complete(served, **MOST, skip_special_tokens=False, stop=CHANNEL)["text"] == " a🦙東"
    assert complete(served, **MOST, stop=CHANNEL)["text"] == " a🦙東"
