"""``echo``: the prompt before its completion, with log-probabilities as transformers' forward pass gives them."""

import copy
import threading
from functools import cache
from itertools import chain
from typing import Any

import openai
import pytest
import torch

from tests.apps.serving.serving import Served, serving
from tests.support.built_in_model import built_in

PROMPT = "# heapq\ndef merge("
LONG = "".join(f"x{number} = {number}\n" for number in range(80))  # several chunks
PLAIN: dict[str, Any] = {"model": "demo", "temperature": 0}


def ids_of(text: str) -> list[int]:
    return list(built_in()[1](text)["input_ids"])


@cache
def precise() -> Any:
    """The model in float64: transformers' own logits in float32 are off by 0.001."""
    return copy.deepcopy(built_in()[0]).double()


def law_of(ids: list[int]) -> torch.Tensor:
    """The log-probabilities after each token, by transformers."""
    with torch.no_grad():
        return torch.as_tensor(precise()(torch.tensor([ids])).logits[0].log_softmax(-1))


def assert_scored(logprobs: Any, ids: list[int], num_top: int) -> None:
    """Compare a choice's ``logprobs`` with the model's own of the tokens ``ids``."""
    law, tokenizer = law_of(ids), built_in()[1]
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(ids)
    for position in range(1, len(ids)):
        expected = law[position - 1]
        assert logprobs.token_logprobs[position] == pytest.approx(float(expected[ids[position]]), abs=3e-3)
        top = logprobs.top_logprobs[position]
        assert max(top.values()) == pytest.approx(float(expected.max()), abs=3e-3) or not num_top
        assert num_top <= len(top) <= num_top + 1
        assert top[tokenizer.decode([ids[position]])] == logprobs.token_logprobs[position]


@pytest.mark.parametrize("num_top", [0, 1, 4])
@pytest.mark.parametrize("text", [PROMPT, LONG], ids=["short", "long"])
def test_a_prompt_alone_is_scored(served: Served, text: str, num_top: int) -> None:
    answer = served.openai().completions.create(**PLAIN, prompt=text, max_tokens=0, echo=True, logprobs=num_top)
    (choice,) = answer.choices
    assert choice.text == text
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert_scored(choice.logprobs, ids_of(text), num_top)
    assert "".join((choice.logprobs.tokens or [])[1:]) == text
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (0, len(ids_of(text)))


def test_each_offset_is_where_the_tokens_text_begins(served: Served) -> None:
    text = "# naïve 日本 — x\n" + PROMPT
    answer = served.openai().completions.create(**PLAIN, prompt=text, max_tokens=4, echo=True, logprobs=0)
    (choice,) = answer.choices
    told: Any = choice.logprobs
    for position, (token, offset) in enumerate(zip(told.tokens, told.text_offset, strict=True)):
        if position and "\N{REPLACEMENT CHARACTER}" not in token:
            assert choice.text[offset:].startswith(token), position
    assert told.text_offset == sorted(told.text_offset)
    assert choice.text.startswith(text)


def test_the_completion_follows_and_is_that_without_echo(served: Served) -> None:
    fields = {**PLAIN, "prompt": PROMPT, "max_tokens": 9, "temperature": 1.0, "seed": 4, "n": 2, "logprobs": 2}
    client = served.openai()
    alone = client.completions.create(**fields)
    echoed = client.completions.create(**fields, echo=True)
    parts = [*client.completions.create(**fields, echo=True, stream=True)]
    for index in range(2):
        plain, whole = alone.choices[index], echoed.choices[index]
        assert whole.text == PROMPT + plain.text
        prompt, told, own = ids_of(PROMPT), whole.logprobs, plain.logprobs
        assert told is not None
        assert own is not None
        assert own.tokens == (told.tokens or [])[len(prompt) :]
        assert own.token_logprobs == pytest.approx((told.token_logprobs or [])[len(prompt) :], abs=3e-3)
        assert [len(PROMPT) + offset for offset in own.text_offset or ()] == (told.text_offset or [])[len(prompt) :]
        streamed = [part.choices[0] for part in parts if part.choices[0].index == index]
        assert "".join(choice.text for choice in streamed) == whole.text
        pieces = chain.from_iterable(choice.logprobs.token_logprobs or [] for choice in streamed if choice.logprobs)
        assert [*pieces] == pytest.approx(told.token_logprobs, abs=3e-3)
    assert echoed.usage is not None
    assert echoed.usage.completion_tokens == 18


def test_a_batch_of_texts_or_of_token_ids_is_scored_each_alone(served: Served) -> None:
    texts = [PROMPT, "# shutil\nimport", "x"]
    ids = [ids_of(text) for text in texts]
    for prompts in (texts, ids):
        answer = served.openai().completions.create(**PLAIN, prompt=prompts, max_tokens=1, echo=True, logprobs=1)
        for choice, prompt, text in zip(answer.choices, ids, texts, strict=True):
            assert choice.text.startswith(text)
            told: Any = choice.logprobs
            written = [int(law_of(prompt)[-1].argmax())]
            assert_scored(told, [*prompt, *written], 1)


def test_a_prefix_in_the_cache_changes_nothing(served: Served) -> None:
    fields = {**PLAIN, "prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 0}
    served.openai().completions.create(**PLAIN, prompt=LONG, max_tokens=1)
    (choice,) = served.openai().completions.create(**fields).choices
    assert_scored(choice.logprobs, ids_of(LONG), 1)


def test_without_log_probabilities_only_the_text_is_told(served: Served) -> None:
    (choice,) = served.openai().completions.create(**PLAIN, prompt=PROMPT, max_tokens=0, echo=True).choices
    assert (choice.text, choice.logprobs) == (PROMPT, None)


def test_a_token_that_the_text_omits_takes_no_room(served: Served) -> None:
    """The tokenizer begins each text with a special token, which ``tokens`` has and ``text`` has not."""
    for prompt in ("import os", ids_of("import os")):
        answer = served.openai().completions.create(**PLAIN, prompt=prompt, max_tokens=0, echo=True, logprobs=0)
        told: Any = answer.choices[0].logprobs
        assert answer.choices[0].text == "import os"
        assert told.tokens[0] == "<|endoftext|>"
        assert told.text_offset[:2] == [0, 0]
    shown: Any = served.openai().completions.create(
        **PLAIN, prompt=ids_of("import os"), max_tokens=0, echo=True, extra_body={"skip_special_tokens": False}
    )
    assert shown.choices[0].text == "<|endoftext|>import os"


def test_what_asks_for_nothing_is_refused(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="echo: true") as caught:
        served.openai().completions.create(**PLAIN, prompt=PROMPT, max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_a_prompt_that_was_not_read_in_time_is_an_error_and_not_a_score() -> None:
    with serving(max_batch_size=1, timeout=0.4) as slow:
        busy = {**PLAIN, "prompt": PROMPT, "max_tokens": 400, "proposer": "off"}
        thread = threading.Thread(target=slow.post, args=("/v1/completions", busy))
        thread.start()
        body = {**PLAIN, "prompt": [PROMPT, LONG], "max_tokens": 0, "echo": True, "logprobs": 0}
        late = slow.post("/v1/completions", body)
        thread.join()
    assert late.status_code in (200, 429, 503)
    if late.status_code == 200:
        assert [len(each["logprobs"]["tokens"]) for each in late.json()["choices"]] == [
            len(ids_of(PROMPT)),
            len(ids_of(LONG)),
        ]
