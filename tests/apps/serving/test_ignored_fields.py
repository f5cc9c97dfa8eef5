"""Fields that ask for what is done anyway change nothing; others are honoured, or refused by name."""

import copy
from typing import Any

import pytest
import torch
from transformers import AddedToken

from specdec import Generator, demo
from specdec.apps.serving.ignored_fields import CHAT_FIELDS, COMPLETION_FIELDS
from specdec.apps.serving.schemas import ChatBody, CompletionBody
from tests.apps.serving.serving import Served, serving

PROMPT = "# heapq\ndef merge("
PLAIN = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0}
MARKER = "import"
TEMPLATE = (
    "{% if reasoning_effort %}effort {{ reasoning_effort }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module", name="chatting")
def _chatting() -> Any:
    model, tokenizer = demo.load()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_tokens([AddedToken(MARKER, special=True)], special_tokens=True)  # an entry of its own vocabulary
    with serving(Generator(model, tokenizer, proposer="auto")) as running:
        yield running


def text(served: Served, body: dict[str, Any], **fields: Any) -> str:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = served.post(path, {**body, **fields})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def greedy(
    served: Served, prompt: str, num_tokens: int, stops: tuple[int, ...] = (), penalty: float = 1.0
) -> list[int]:
    """Plain greedy decoding by transformers' model; a token of ``stops`` is the last."""
    ids = served.generator.tokenizer(prompt)["input_ids"]
    begin = len(ids)
    while len(ids) - begin < num_tokens:
        with torch.no_grad():
            logits = served.generator.model(torch.tensor([ids])).logits[0, -1].clone()
        seen = torch.tensor(sorted({*ids}))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        ids.append(int(logits.argmax()))
        if ids[-1] in stops:
            break
    return ids[begin:]


@pytest.mark.parametrize("body", [PLAIN, CHAT], ids=["completion", "chat"])
def test_neutral_values_all_at_once_change_nothing(served: Served, chatting: Served, body: dict[str, Any]) -> None:
    neutral = CHAT_FIELDS if body is CHAT else COMPLETION_FIELDS
    first = {name: values[0] for name, values in neutral.items() if values}
    last = {name: values[-1] for name, values in neutral.items() if values}
    on = chatting if body is CHAT else served
    assert text(on, body) == text(on, body, **first) == text(on, body, **last)


@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_null_asks_for_nothing_whatever_the_field(served: Served, chatting: Served, kind: type[Any]) -> None:
    body, on = (CHAT, chatting) if kind is ChatBody else (PLAIN, served)
    names = {*kind.model_fields, *CHAT_FIELDS, *COMPLETION_FIELDS, "a_field_of_next_year"} - body.keys()
    assert text(on, body, **dict.fromkeys(names)) == text(on, body)


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": False, "best_of": 1, "suffix": "", "logprobs": False, "n": 1},
        {"repetition_penalty": 1.0, "ignore_eos": False, "stop_token_ids": [], "min_tokens": 0},  # vLLM's benchmark
        {"seed": 1234, "stop": ["Question:", "</s>", "<|im_end|>", "\n\n\n\n"], "stream": False},  # lm-eval
        {"stop": [f"stop {number}" for number in range(16)] + ["<|endoftext|>"]},
        {"length_penalty": 1, "use_beam_search": False, "typical_p": 1.0, "truncate_prompt_tokens": None},
        {"stream_options": {}, "top_k": -1, "min_p": 0.0, "top_p": 1.0},
        {"stream_options": {"include_usage": False, "continuous_usage_stats": None}},
        {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "service_tier": "flex"},
    ],
)
def test_what_clients_send_with_every_completion_changes_nothing(served: Served, fields: dict[str, Any]) -> None:
    assert text(served, PLAIN, **fields) == text(served, PLAIN)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": None, "verbosity": "medium", "top_logprobs": 0, "logprobs": False},
        {"verbosity": "low", "store": False, "prediction": {"type": "content", "content": "hello"}},
        {"functions": [], "function_call": "none", "tools": [], "tool_choice": "auto", "modalities": ["text"]},
        {"response_format": {"type": "text"}, "parallel_tool_calls": True, "audio": None},
        {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False},
        {"prompt_cache_options": {"mode": "implicit", "prewarm": False}, "prompt_cache_retention": "24h"},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}},
                    ],
                }
            ]
        },
    ],
)
def test_what_clients_send_with_every_chat_changes_nothing(chatting: Served, fields: dict[str, Any]) -> None:
    assert text(chatting, CHAT, **fields) == text(chatting, CHAT)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("chat/completions", "echo", True),
        ("chat/completions", "prompt_cache_options", {"prewarm": True}),
        ("completions", "prompt_cache_options", "24h"),
        ("completions", "suffix", "end"),
        ("completions", "use_beam_search", True),
        ("completions", "length_penalty", 1.2),
        ("completions", "length_penalty", True),
        ("completions", "prompt_logprobs", 0),
        ("completions", "add_special_tokens", False),
        ("completions", "truncate_prompt_tokens", 5),
        ("completions", "logit_processors", []),
        ("chat/completions", "add_special_tokens", True),
        ("chat/completions", "functions", [{"name": "f"}]),
        ("chat/completions", "include_reasoning", False),
        ("chat/completions", "separate_reasoning", False),
        ("chat/completions", "bad_words", ["no"]),
        ("chat/completions", "verbosity", "extreme"),
        ("chat/completions", "chat_template", "{{ messages }}"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    served: Served, chatting: Served, path: str, name: str, value: Any
) -> None:
    body, on = (PLAIN, served) if path == "completions" else (CHAT, chatting)
    answer = on.post(f"/v1/{path}", {**body, name: value})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].partition(".")[0] == name
    assert name in answer.json()["error"]["message"]


def test_a_repetition_penalty_is_transformers(served: Served) -> None:
    expected = served.generator.tokenizer.decode(greedy(served, PROMPT, 12, penalty=2.0))
    assert text(served, PLAIN, repetition_penalty=2.0) == expected != text(served, PLAIN)


def test_a_token_by_its_id_ends_the_text(served: Served) -> None:
    written = greedy(served, PROMPT, 12)
    stop = written[5]
    expected = greedy(served, PROMPT, 12, stops=(stop,))
    for proposer in ("off", "auto"):
        answer = served.post("/v1/completions", {**PLAIN, "stop_token_ids": [stop, stop], "proposer": proposer}).json()
        assert answer["usage"]["completion_tokens"] == len(expected) < 12
        assert answer["choices"][0]["finish_reason"] == "stop"
    late = served.post("/v1/completions", {**PLAIN, "stop_token_ids": [stop], "min_tokens": 12}).json()
    assert late["usage"]["completion_tokens"] == 12
    answer = served.post("/v1/completions", {**PLAIN, "stop_token_ids": [served.generator.vocab_size]})
    assert answer.json()["error"]["param"] == "stop_token_ids"
    answer = served.post("/v1/completions", {**PLAIN, "min_tokens": 13})
    assert answer.json()["error"]["param"] == "min_tokens"


@pytest.fixture
def ending(served: Served) -> Any:
    """A server whose model ends its text at a token that it soon writes."""
    config = served.generator.model.generation_config
    before = config.eos_token_id
    config.eos_token_id = greedy(served, PROMPT, 4)[3]
    yield served
    config.eos_token_id = before


def test_the_models_own_end_may_be_ignored(ending: Served) -> None:
    eos = ending.generator.model.generation_config.eos_token_id
    ended = len(greedy(ending, PROMPT, 12, stops=(eos,)))
    assert ended < 12
    for fields, num_tokens in (
        ({}, ended),
        ({"ignore_eos": True}, 12),
        ({"ignore_eos": True, "min_tokens": 3}, 12),
        ({"ignore_eos": True, "stop_token_ids": [eos]}, ended),
        ({"min_tokens": 12}, 12),
    ):
        answer = ending.post("/v1/completions", {**PLAIN, **fields}).json()
        assert answer["usage"]["completion_tokens"] == num_tokens, fields


def test_a_special_token_among_the_stops_ends_the_text_by_its_id(chatting: Served) -> None:
    """lm-eval appends the end-of-text string to ``stop``; others name a template's markers."""
    tokenizer = chatting.generator.tokenizer
    token = tokenizer.convert_tokens_to_ids(MARKER)
    assert token < chatting.generator.vocab_size
    bias = {str(token): 100}
    answer = chatting.post("/v1/completions", {**PLAIN, "logit_bias": bias, "stop": [MARKER, "<|endoftext|>"]}).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_template_reads_effort_and_how_the_prompt_ends(chatting: Served) -> None:
    def written(prompt: str) -> str:
        ids = chatting.generator.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return text(chatting, {**PLAIN, "prompt": ids, "max_tokens": 6})

    assert text(chatting, CHAT, reasoning_effort="high") == written("effort high\nuser: hi\nassistant:")
    assert text(chatting, CHAT, add_generation_prompt=False) == written("user: hi\n")
    last = [*CHAT["messages"], {"role": "assistant", "content": "well"}]
    assert text(chatting, CHAT, messages=last, continue_final_message=True) == written("user: hi\nassistant: well")
    again = text(chatting, CHAT, messages=last, add_generation_prompt=True)
    assert again == written("user: hi\nassistant: well\nassistant:")
    both = chatting.post(
        "/v1/chat/completions", {**CHAT, "add_generation_prompt": True, "continue_final_message": True}
    )
    assert both.json()["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize(
    ("role", "fields", "begun"),
    [
        ("assistant", {}, "well"),
        ("assistant", {"continue_final_message": True}, "well"),
        ("assistant", {"continue_final_message": False}, None),
        ("assistant", {"add_generation_prompt": True}, None),
        ("assistant", {"add_generation_prompt": False}, None),
        ("assistant", {"add_generation_prompt": False, "continue_final_message": True}, "well"),
        ("user", {}, None),
        ("user", {"add_generation_prompt": False}, None),
    ],
)
def test_an_answer_continues_the_last_message_where_the_template_leaves_it_open(
    chatting: Served, role: str, fields: dict[str, Any], begun: str | None
) -> None:
    """Text that begins a message may begin with reasoning; text that continues one goes on with what it has."""
    messages = [*CHAT["messages"], {"role": role, "content": "well"}]
    call = chatting.server._parser.chat(ChatBody.model_validate({**CHAT, "messages": messages, **fields}))
    assert call.plan.request.begun == begun
    prompt = chatting.generator.tokenizer.decode(call.prompts[0])
    assert prompt.endswith(f"{role}: well") == (begun is not None)


def test_each_part_of_a_stream_has_the_usage_so_far_where_it_is_wanted(served: Served) -> None:
    for options, expected in (({"continuous_usage_stats": True}, True), ({"include_usage": True}, False)):
        parts = served.openai().completions.create(**PLAIN, stream=True, stream_options=options)  # type: ignore[call-overload]
        counts = [part.usage.completion_tokens for part in parts if part.usage and part.choices]
        assert bool(counts) is expected
        assert counts == sorted(counts)
        assert not counts or counts[-1] == 12
