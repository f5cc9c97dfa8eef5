"""Constrained content on the server: the generator's texts under the same constraint, and errors with their place."""

import asyncio
import json
from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest

from specdec import Generator
from specdec.apps.serving import structured_outputs
from specdec.apps.serving.answer_constraints import AnswerPlan
from specdec.apps.serving.compilation import ConstraintCompiler
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.structured_outputs import schema_constraint
from specdec.constraints import (
    Choice,
    ConstraintState,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Vocabulary,
    matcher,
)
from specdec.constraints.grammar_constraint import GrammarConstraint
from tests.apps.serving.serving import Served, serving
from tests.support.chat_models import END, chat_tokenizer, random_model
from tests.support.waiting import soon

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ASKED: dict[str, Any] = {"model": "demo", "max_tokens": 60, "temperature": 1, "seed": 5}
CHAT = {**ASKED, "messages": [{"role": "user", "content": "Who?"}]}
WANTED: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_object"}}, JsonObject()),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"regex": "[a-c]{3}x?"}}, Regex("[a-c]{3}x?")),
    ({"structured_outputs": {"choice": ["left", "right"]}}, Choice(["left", "right"])),
    ({"structured_outputs": {"grammar": 'start: "a" /[0-9]{3}/'}}, Grammar('start: "a" /[0-9]{3}/')),
    ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, Regex("a[0-9]")),
    ({"structured_outputs": {"json_object": True}}, JsonObject()),
    ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
    ({"guided_regex": "[a-c]{3}x?"}, Regex("[a-c]{3}x?")),
    ({"guided_choice": ["left", "right"]}, Choice(["left", "right"])),
    ({"guided_grammar": 'start: "a" /[0-9]{3}/'}, Grammar('start: "a" /[0-9]{3}/')),
]


@pytest.fixture(scope="module", params=["plain", "thinking"])
def chatting(request: pytest.FixtureRequest) -> Iterator[Served]:
    end = "{# <think></think> #}" if request.param == "thinking" else ""
    tokenizer = chat_tokenizer(end, added=("<think>", "</think>"))
    with serving(Generator(random_model(tokenizer), tokenizer, proposer="auto")) as running:
        yield running


@pytest.fixture(scope="module")
def alone() -> Generator:
    tokenizer = chat_tokenizer("", added=("<think>", "</think>"))
    return Generator(random_model(tokenizer), tokenizer, proposer="autoregressive")


@pytest.mark.parametrize(
    ("fields", "constraint"), WANTED, ids=lambda each: json.dumps(each)[:45] if isinstance(each, dict) else ""
)
def test_completions_are_the_generators_own_texts(served: Served, fields: dict[str, Any], constraint: Any) -> None:
    body = {**ASKED, "prompt": "# heapq", **fields}
    answer = served.post("/v1/completions", body).json()["choices"][0]
    reference = Generator(served.generator.model, served.generator.tokenizer, proposer="autoregressive")
    expected = reference.generate("# heapq", constraint=constraint, max_new_tokens=60, temperature=1.0, seed=5)
    assert answer["text"] == expected.text
    assert answer["finish_reason"] == expected.finish_reason


@pytest.mark.parametrize(
    ("fields", "constraint"), WANTED[:7], ids=lambda each: json.dumps(each)[:45] if isinstance(each, dict) else ""
)
def test_chat_answers_meet_the_constraint(chatting: Served, fields: dict[str, Any], constraint: Any) -> None:
    # A thinking model may reason first, and does so if the opening tag is likely.
    (think,) = chatting.generator.tokenizer("<think>", add_special_tokens=False)["input_ids"]
    thinks = "think" in chatting.generator.tokenizer.chat_template
    bias = {str(think): 30} if thinks else {}
    answer = chatting.post("/v1/chat/completions", {**CHAT, **fields, "logit_bias": bias, "max_tokens": 250}).json()
    message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    assert bool(message.get("reasoning_content")) == thinks
    if reason == "stop":
        assert constraint.parse(message["content"]) is not None
        if isinstance(constraint, JsonSchema):
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
        elif not isinstance(constraint, JsonObject):
            state = constraint.start(served_vocabulary(chatting))
            for token in chatting.generator.tokenizer(message["content"], add_special_tokens=False)["input_ids"]:
                state = state.advance(token)
            assert state.is_accepting
    else:
        assert isinstance(constraint, JsonObject)


def served_vocabulary(served: Served) -> Any:
    return served.server._compiler.vocabulary


def test_a_schema_constrained_answer_is_the_same_streamed(chatting: Served) -> None:
    body = {**CHAT, **WANTED[0][0]}
    whole = chatting.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    parts = [part.choices[0].delta for part in chatting.openai().chat.completions.create(**body, stream=True)]
    assert "".join(part.content or "" for part in parts) == (whole["content"] or "")
    reasoning = "".join(getattr(part, "reasoning_content", None) or "" for part in parts)
    assert reasoning == whole.get("reasoning_content", "")


def test_an_answer_that_is_cut_has_its_first_part(chatting: Served) -> None:
    body = {**CHAT, **WANTED[0][0], "max_tokens": 6, "logit_bias": {}}
    answer = chatting.post("/v1/chat/completions", body).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert '{"name": "'.startswith(answer["message"]["content"][:10])


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
PLACE = "refused at #/properties/a: the keyword 'uniqueItems'"
UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}


def nested(num_objects: int) -> dict[str, Any]:
    """A schema of objects in each other: two levels each, and one for the innermost."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(num_objects):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def lists(num_levels: int) -> list[Any]:
    """An empty list within others."""
    return [lists(num_levels - 1)] if num_levels > 1 else []


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is needed"),
    ({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}}, "response_format", "no other type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": UNIQUE}}},
        "response_format.json_schema.schema", PLACE,
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": UNIQUE, "strict": True}}},
        "response_format.json_schema.schema", PLACE,
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 3}}}},
        "response_format.json_schema.schema", "#: type is a string or a list",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "kind": 1}}},
        "response_format.json_schema.kind", "Unrecognized",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "give one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "give one of"),
    ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex", "the constraint is refused: look-around"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "empty text alone"),
    ({"structured_outputs": {"grammar": 'start: "a" x'}}, "structured_outputs.grammar", 'unknown name: "x"'),
    ({"structured_outputs": {"grammar": 'root ::= "a" | )'}}, "structured_outputs.grammar", "GBNF"),
    ({"structured_outputs": {"grammar": "x" * 300_000}}, "structured_outputs.grammar", "at most 262,144"),
    ({"structured_outputs": {"json": nested(51)}}, "structured_outputs.json", "nested more than 100 levels deep."),
    ({"structured_outputs": {"json": {"const": lists(400)}}}, "structured_outputs.json", "nested more than 100"),
    ({"structured_outputs": {"choice": ["<|end|>"]}}, None, "tokens can't write any text"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": UNSUPPORTED}}},
        "response_format.json_schema.schema", "at #/properties/a: regex parse",
    ),
    ({"guided_json": {"minItem": 1}}, "guided_json", "did you mean 'minItems'?"),
    ({"guided_json": {"a" * 5_000: 1}}, "guided_json", f"the keyword '{'a' * 39}…' can't"),
    (
        {"guided_json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
        "guided_json", "oneOf constraints are not supported.",
    ),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "isn't JSON"),
    ({"guided_json": UNIQUE}, "guided_json", PLACE),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "both given"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "both given"),
    ({"guided_regex": "a", "min_tokens": 2}, "min_tokens", "leave one out"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=lambda each: json.dumps(each)[:60])
def test_what_cannot_be_enforced_is_refused_with_its_place(
    served: Served, fields: dict[str, Any], param: str | None, reason: str
) -> None:
    answer = served.post("/v1/completions", {**ASKED, "prompt": "x", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]
    assert not error["message"].endswith(("?.", ".."))
    assert len(error["message"]) < 600


def test_a_schema_that_is_not_strict_is_any_object_if_it_must(served: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": UNIQUE, "strict": False}}
    body = {**ASKED, "prompt": "# heapq", "max_tokens": 20}
    texts = [
        served.post("/v1/completions", {**body, "response_format": each}).json()["choices"][0]["text"]
        for each in (wanted, {"type": "json_object"})
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("{")


def test_a_schema_that_the_library_refuses_is_refused_at_its_place_in_a_tool_and_a_format(chatting: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": UNSUPPORTED}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": UNSUPPORTED, "strict": True}}]
    for fields, param in (
        ({"response_format": wanted}, "response_format.json_schema.schema"),
        ({"tools": tools, "tool_choice": "required"}, "tools[0].function.parameters"),
    ):
        answer = chatting.post("/v1/chat/completions", {**CHAT, **fields})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert "at #/properties/a: regex parse error" in answer.json()["error"]["message"]
        assert '(with "strict": false, it isn\'t enforced)' in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["object", "string"])
def test_a_schema_that_the_library_refuses_is_any_value_of_its_kind_if_it_is_not_strict(
    served: Served, chatting: Served, kind: str
) -> None:
    schema = UNSUPPORTED if kind == "object" else UNSUPPORTED["properties"]["a"]  # type: ignore[index]
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": False}}
    body = {**ASKED, "prompt": "# heapq", "max_tokens": 12}
    answer = served.post("/v1/completions", {**body, "response_format": wanted})
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["text"]
    if kind == "object":
        assert (
            text
            == served.post("/v1/completions", {**body, "response_format": {"type": "json_object"}}).json()["choices"][
                0
            ]["text"]
        )
    else:
        assert text[:1] in '{["-0123456789tfn'
    tools = [{"type": "function", "function": {"name": "f", "parameters": UNSUPPORTED, "strict": False}}]
    answer = chatting.post("/v1/chat/completions", {**CHAT, "tools": tools, "tool_choice": "required"})
    assert answer.status_code == 200, answer.text


def test_a_constraint_that_a_stop_token_cuts_off_is_the_requests_own_fault(served: Served) -> None:
    (digit,) = served.generator.tokenizer("7", add_special_tokens=False)["input_ids"]
    for pattern, reason in (("7", "tokens can't write any text"), ("ab7", "leave no token possible")):
        fields = {"guided_regex": pattern, "stop_token_ids": [digit]}
        answer = served.post("/v1/completions", {**ASKED, "prompt": "x", **fields})
        assert answer.status_code == 400, answer.text
        assert reason in answer.json()["error"]["message"]


def test_a_grammar_in_gbnf_is_translated_only_up_to_a_size(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from llguidance import gbnf_to_lark

    def translated(_: str) -> str:
        raise AssertionError("too large")

    monkeypatch.setattr(gbnf_to_lark, "any_to_lark", translated)
    grammar = f'root ::= "{"x" * 300_000}"'
    answer = served.post("/v1/completions", {**ASKED, "prompt": "x", "structured_outputs": {"grammar": grammar}})
    assert answer.status_code == 400
    assert "at most 262,144" in answer.json()["error"]["message"]


class Waiting(GrammarConstraint):
    """A constraint whose compilation waits for the test."""

    number: int

    def start(self, vocabulary: Vocabulary, seconds: float | None = None) -> ConstraintState:
        RELEASED.wait(30)
        return Regex("a").start(vocabulary)

    def grammar(self, vocabulary: Vocabulary) -> str:
        raise AssertionError("only start is called")


RELEASED = Event()


def test_a_constraint_that_the_models_tokens_cannot_write_is_refused_with_its_field() -> None:
    tokenizer = chat_tokenizer("")
    compiler = ConstraintCompiler(tokenizer, len(tokenizer))
    constraint = Choice([END])
    with pytest.raises(ApiError, match="tokens can't write any text") as caught:
        asyncio.run(compiler.compiled(AnswerPlan(constraint, [("guided_choice", constraint)])))
    compiler.close()
    assert (caught.value.status, caught.value.param) == (400, "guided_choice")


def test_few_compilations_wait_and_others_are_refused_until_they_end() -> None:
    RELEASED.clear()
    tokenizer = chat_tokenizer("")
    compiler = ConstraintCompiler(tokenizer, len(tokenizer))

    async def all_answers() -> list[Any]:
        plans = [AnswerPlan(each, [("x", each)]) for each in (Waiting(number=number) for number in range(20))]
        tasks = [asyncio.ensure_future(compiler.compiled(plan)) for plan in plans]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        RELEASED.set()
        await asyncio.wait(tasks)
        assert await compiler.compiled(plans[-1]) is not None
        return [task.exception() for task in tasks]

    faults = asyncio.run(all_answers())
    compiler.close()
    assert faults[:18] == [None] * 18
    assert [fault.status for fault in faults[18:]] == [429, 429]
    assert all("Retry-After" in fault.headers for fault in faults[18:])


def test_a_constraint_that_others_keep_from_compiling_may_be_sent_again() -> None:
    tokenizer = chat_tokenizer("")
    compiler, constraint = ConstraintCompiler(tokenizer, len(tokenizer)), Regex("a")
    plan = AnswerPlan(constraint, [("guided_regex", constraint)])
    threads = [Thread(target=RELEASED.wait, args=(60,)) for _ in range(2)]
    RELEASED.clear()
    for thread in threads:
        thread.start()
        compiler.vocabulary.once(matcher._library_tokens).abandoned[thread] = f"grammar {thread.name}"
    with pytest.raises(ApiError, match="still being compiled") as caught:
        asyncio.run(compiler.compiled(plan))
    assert (caught.value.status, caught.value.param) == (429, None)
    assert "Retry-After" in caught.value.headers
    RELEASED.set()
    for thread in threads:
        thread.join()
    assert asyncio.run(compiler.compiled(plan)) is not None
    compiler.close()


@pytest.mark.parametrize("has_rules", [False, True])
def test_a_schema_that_is_not_strict_takes_no_longer_than_any_other(
    has_rules: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock of its own: a refusal takes four seconds, and what is compiled after it has the rest of the ten."""
    tokenizer, clock, limits = chat_tokenizer(""), [0.0], list[float]()
    compile_grammar = matcher._compiled

    def compiled(grammar: str, tokens: Any, seconds: float) -> Any:
        limits.append(seconds)
        clock[0] += 4.0
        return compile_grammar(grammar, tokens, 60.0)

    compiler = ConstraintCompiler(tokenizer, len(tokenizer))
    constraint: Any = schema_constraint(UNSUPPORTED, False, "x")
    if has_rules:
        constraint = Grammar('start: "x" @a', parts={"a": constraint})
    monkeypatch.setattr(matcher, "_compiled", compiled)
    monkeypatch.setattr("specdec.apps.serving.compilation.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("specdec.apps.serving.lenient_schema.time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert compiler._start(constraint).mask().any()
    assert limits == [10.0, 6.0, 2.0][: 3 if has_rules else 2]
    compiler.close()


def test_a_request_whose_constraint_waits_past_its_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    RELEASED.clear()
    with serving(timeout=0.5) as running:
        monkeypatch.setattr(structured_outputs, "Regex", lambda _: Waiting(number=0))
        answer = running.post("/v1/completions", {**ASKED, "prompt": "x", "guided_regex": "a"})
        RELEASED.set()
    assert answer.status_code == 429, answer.text
    assert "constraint waited too long" in answer.json()["error"]["message"]


def test_other_requests_are_answered_while_a_constraint_is_compiled(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    RELEASED.clear()
    library = matcher.library()

    def held(*args: Any, **options: Any) -> Any:
        RELEASED.wait(60)
        return library.LLMatcher(*args, **options)

    monkeypatch.setattr(matcher, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(matcher, "library", lambda: SimpleNamespace(**{**vars(library), "LLMatcher": held}))
    slow = served.post("/v1/completions", {**ASKED, "prompt": "x", "guided_regex": "(a|b){90}c"})
    assert slow.status_code == 400
    assert "takes longer than" in slow.json()["error"]["message"]
    monkeypatch.undo()
    RELEASED.set()
    again = {**ASKED, "prompt": "x", "guided_regex": "(a|b){4}c"}
    assert soon(lambda: served.post("/v1/completions", again).status_code == 200)
    assert len(served.post("/v1/completions", again).json()["choices"][0]["text"]) == 5


def test_compiled_constraints_are_kept_by_content_up_to_a_number(served: Served) -> None:
    compiler = served.server._compiler
    for number in range(70):
        assert asyncio.run(compiler.compiled(AnswerPlan(Regex(f"a{number % 66}")))) is not None
    assert len(compiler._cache._states) == 64
    state = compiler._cache.find(Regex("a3"))
    assert state is not None
    answer = served.post("/v1/completions", {**ASKED, "prompt": "x", "guided_regex": "a3"}).json()
    assert answer["choices"][0]["text"] == "a3"
    assert compiler._cache.find(Regex("a3")) is state


def test_a_schema_that_is_not_strict_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = chat_tokenizer("")
    compiler, compiled = ConstraintCompiler(tokenizer, len(tokenizer)), Mock(wraps=matcher._compiled)
    monkeypatch.setattr(matcher, "_compiled", compiled)
    lenient = schema_constraint({"type": "object", "properties": {"a": {"type": "boolean"}}}, False, "x")
    for number, constraint in enumerate((lenient, Grammar('start: "x" @a', parts={"a": lenient})), 1):
        plan = AnswerPlan(constraint, [("x", lenient)])
        for _ in range(2):
            assert asyncio.run(compiler.compiled(plan)) is not None
            assert compiled.call_count == number
    compiler.close()
