"""OpenAI's own Python client against a running server: what it says is what the library says."""

import math
from typing import Any

import openai
import pytest
import torch

from specdec import Generator, demo
from specdec.sampling.randomness import seed_of_sample
from tests.apps.serving.serving import Served, serving, templated
from tests.support.built_in_model import built_in

PROMPT = "# heapq\ndef merge("


@pytest.fixture(scope="module")
def alone() -> Generator:
    return Generator(*built_in(), proposer="autoregressive")


def test_a_completion_is_the_librarys_text(served: Served, alone: Generator) -> None:
    answer = served.openai().completions.create(model="demo", prompt=PROMPT, max_tokens=30, temperature=0)
    expected = alone.generate(PROMPT, max_new_tokens=30)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30
    assert answer.usage.prompt_tokens == len(built_in()[1](PROMPT)["input_ids"])


def test_a_stream_has_the_same_text_and_usage_at_its_end(served: Served, alone: Generator) -> None:
    parts = served.openai().completions.create(
        model="demo", prompt=PROMPT, max_tokens=30, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    texts, usages = [], []
    for part in parts:
        texts += [choice.text for choice in part.choices]
        usages += [part.usage] if part.usage else []
    assert "".join(texts) == alone.generate(PROMPT, max_new_tokens=30).text
    (usage,) = usages
    speculation = usage.model_extra["speculation"]
    assert usage.completion_tokens == 30
    assert speculation["strategy"] == "auto"
    assert 1 <= speculation["steps"] <= 30
    assert speculation["tokens_per_step"] == round(30 / speculation["steps"], 4)
    accepted, drafted = speculation["accepted_by_position"], speculation["drafted_by_position"]
    assert sum(accepted) == 30 - speculation["steps"]
    assert all(own <= of for own, of in zip(accepted, drafted, strict=True))


@pytest.mark.parametrize(
    "proposer", ["off", "prompt_lookup:num_tokens=4", "lookahead:N=3,W=3,G=3", "suffix+prompt_lookup:num_tokens=4"]
)
def test_a_sampled_text_is_the_seeds_whatever_strategy_a_request_names(
    served: Served, alone: Generator, proposer: str
) -> None:
    answer = served.openai().completions.create(
        model="demo", prompt=PROMPT, max_tokens=40, temperature=0.8, top_p=0.9, seed=7,
        frequency_penalty=0.3, presence_penalty=0.2, logit_bias={"5": -100},
        extra_body={"proposer": proposer, "top_k": 40, "min_p": 0.01},
    )  # fmt: skip
    expected = alone.generate(
        PROMPT, max_new_tokens=40, temperature=0.8, top_p=0.9, seed=7, frequency_penalty=0.3, presence_penalty=0.2,
        logit_bias={5: -100}, top_k=40, min_p=0.01,
    )  # fmt: skip
    assert answer.choices[0].text == expected.text


def test_several_texts_have_the_seeds_of_samples(served: Served, alone: Generator) -> None:
    prompts = [PROMPT, "# shutil"]
    answer = served.openai().completions.create(
        model="demo", prompt=prompts, n=3, max_tokens=12, temperature=1.0, seed=11
    )
    assert [choice.index for choice in answer.choices] == [*range(6)]
    for number, choice in enumerate(answer.choices):
        expected = alone.generate(
            prompts[number // 3], max_new_tokens=12, temperature=1.0, seed=seed_of_sample(11, number)
        )
        assert choice.text == expected.text
    again = served.openai().completions.create(
        model="demo", prompt=prompts, n=3, max_tokens=12, temperature=1.0, seed=11, stream=True
    )
    texts = [""] * 6
    for part in again:
        for each in part.choices:
            texts[each.index] += each.text
    assert texts == [choice.text for choice in answer.choices]


def test_token_ids_are_a_prompt_and_a_rule_may_be_named(served: Served, alone: Generator) -> None:
    ids = built_in()[1](PROMPT)["input_ids"]
    answer = served.openai().completions.create(
        model="demo", prompt=ids, max_tokens=10, temperature=0, extra_body={"verifier": "rejection"}
    )
    assert answer.choices[0].text == alone.generate(PROMPT, max_new_tokens=10).text


def test_a_stop_string_cuts_the_text_where_it_begins(served: Served, alone: Generator) -> None:
    whole = alone.generate(PROMPT, max_new_tokens=30).text or ""
    stop = whole[12:15]
    for streams in (False, True):
        answer: Any = served.openai().completions.create(
            model="demo", prompt=PROMPT, max_tokens=30, temperature=0, stop=[stop], stream=streams
        )
        choices = [part.choices[0] for part in answer] if streams else answer.choices
        assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_log_probabilities_are_the_models_own(served: Served, alone: Generator) -> None:
    model, tokenizer = demo.load()
    answer = served.openai().completions.create(
        model="demo", prompt=PROMPT, max_tokens=8, temperature=1.0, seed=3, top_p=0.5, logprobs=3,
        logit_bias={"9": 5},
    )  # fmt: skip
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert "".join(told.tokens) == answer.choices[0].text
    ids = tokenizer(PROMPT)["input_ids"]
    settings: Any = {"temperature": 1.0, "seed": 3, "top_p": 0.5, "logit_bias": {9: 5.0}}
    written = alone.generate(PROMPT, max_new_tokens=8, **settings).token_ids
    for token, logprob, top in zip(written, told.token_logprobs, told.top_logprobs, strict=True):
        with torch.no_grad():
            law = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        assert math.isclose(logprob, float(law[token]), abs_tol=1e-4)
        best = [tokenizer.decode([index]) for index in law.topk(3).indices.tolist()]
        assert [*top] == best
        ids.append(token)


@pytest.fixture(scope="module")
def chatting() -> Any:
    """A server whose model has a chat template, which writes tools out as well."""
    template = (
        "{% for tool in tools or [] %}#{{ tool.function.name }}\n{% endfor %}"
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    with serving(templated(template)) as running:
        yield running


def test_chat_goes_through_the_template_streamed_and_not(chatting: Served, alone: Generator) -> None:
    messages: Any = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "sort "}, {"type": "text", "text": "a list"}]},
    ]
    written_out = built_in()[1]("system: be short\nuser: sort a list\nassistant:", add_special_tokens=False)
    expected = alone.generate(written_out["input_ids"], max_new_tokens=16).text
    answer = chatting.openai().chat.completions.create(
        model="demo", messages=messages, max_completion_tokens=16, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 16
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)  # greedy: the likeliest
    parts = [
        *chatting.openai().chat.completions.create(
            model="demo", messages=messages, max_tokens=16, temperature=0, stream=True
        )
    ]
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
    assert parts[-1].choices[0].finish_reason == "length"


def test_a_prediction_is_drafted_from_and_its_tokens_are_counted(chatting: Served, alone: Generator) -> None:
    messages: Any = [{"role": "user", "content": "sort a list"}]
    written_out = built_in()[1]("user: sort a list\nassistant:", add_special_tokens=False)
    expected = alone.generate(written_out["input_ids"], max_new_tokens=48).text or ""
    client, found = chatting.openai().chat.completions, dict[str, tuple[int, int]]()
    for name, prediction in {"right": expected, "wrong": "zebra " * 40, "parts": [text_part(expected)]}.items():
        answer = client.create(
            model="demo", messages=messages, max_tokens=48, temperature=0,
            extra_body={"proposer": "reference:num_nodes=4"},
            prediction={"type": "content", "content": prediction},  # type: ignore[typeddict-item]
        )  # fmt: skip
        assert answer.choices[0].message.content == expected
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        found[name] = details.accepted_prediction_tokens or 0, details.rejected_prediction_tokens or 0
        speculation = (answer.usage.model_extra or {})["speculation"]
        assert sum(speculation["accepted_by_position"]) == found[name][0]
        assert sum(speculation["drafted_by_position"]) <= sum(found[name]) <= 4 * speculation["steps"]
        assert answer.usage.completion_tokens == 48
    assert found["parts"][0] >= found["right"][0] >= 30
    assert found["wrong"][0] < 10 < found["wrong"][1]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_a_prediction_has_no_effect_on_strategies_that_dont_draft_from_it(chatting: Served) -> None:
    messages: Any = [{"role": "user", "content": "sort a list"}]
    create = chatting.openai().chat.completions.create
    plain = create(model="demo", messages=messages, max_tokens=12, temperature=0)
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is None
    for proposer in ("off", "prompt_lookup"):
        answer = create(
            model="demo", messages=messages, max_tokens=12, temperature=0, extra_body={"proposer": proposer},
            prediction={"type": "content", "content": "hello"},
        )  # fmt: skip
        assert answer.choices[0].message.content == plain.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0
        assert answer.usage.completion_tokens_details.rejected_prediction_tokens == 0


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "text", "content": "hello"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 3}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content"),
        ({"type": "content", "content": "x", "strict": True}, "prediction.strict"),
        ("hello", "prediction"),
    ],
)
def test_other_predictions_are_refused_by_the_fields_name(chatting: Served, prediction: Any, param: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "prediction": prediction}
    answer = chatting.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_prediction_longer_than_any_answer_is_read_as_far_as_one_goes(chatting: Served) -> None:
    body = {
        "model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
        "prediction": {"type": "content", "content": "word " * 200_000},
    }  # fmt: skip
    assert chatting.post("/v1/chat/completions", body).status_code == 200


def test_tools_reach_the_template(chatting: Served, alone: Generator) -> None:
    tools: Any = [{"type": "function", "function": {"name": "sort", "parameters": {}}}]
    answer = chatting.openai().chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "x"}], tools=tools, max_tokens=8, temperature=0
    )
    written_out = built_in()[1]("#sort\nuser: x\nassistant:", add_special_tokens=False)["input_ids"]
    assert answer.choices[0].message.content == alone.generate(written_out, max_new_tokens=8).text


def test_errors_are_the_clients_own_kinds(served: Served, chatting: Served) -> None:
    client = served.openai()
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError, match="top_p") as caught:
        client.completions.create(model="demo", prompt="x", top_p=7)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.BadRequestError, match="text alone"):
        chatting.openai().chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
        )


def test_the_model_is_listed_and_found(served: Served) -> None:
    client = served.openai()
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "specdec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
