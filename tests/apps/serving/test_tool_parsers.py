"""Each format's parser and grammar against answers as models write them, by hand, cut at every character."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from specdec.apps.serving.parsed_answer import ParsedAnswer
from specdec.apps.serving.tool_parsers.base import AnswerFormat, AnswerParser, AnswerRequest, Function
from specdec.apps.serving.tool_parsers.selection import answer_format
from specdec.constraints import Grammar, JsonSchema, Vocabulary
from specdec.constraints.matcher import library_special_tokens
from specdec.errors import RequestError
from tests.support.byte_tokenizer import byte_ids
from tests.support.chat_models import DEEPSEEK, HARMONY, chat_tokenizer

pytest.importorskip("llguidance")

WEATHER = '{"city": "Bern", "days": 3}'
BRACES = r'{"text": "}\"{\\"}'
SCHEMAS = {
    "get": {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False},
    "get_weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Paris"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
FUNCTIONS = [Function(name, JsonSchema(schema)) for name, schema in SCHEMAS.items()]
CALLS = [("get_weather", WEATHER), ("get", BRACES)]
HERMES_CALLS = (
    f'<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "get", "arguments": {BRACES}}}\n</tool_call>'
)
V3_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
V31_CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
THINK = "<think>", "</think>"


class Written(NamedTuple):
    """An answer's text, and what it says.

    Attributes:
        template: the end of the chat template, by which the format is found.
        markers: tokens of their own, if the tokenizer has them.
    """

    template: str
    markers: Sequence[str]
    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    prompt_end: str = ""


ANSWERS = {
    "hermes": Written(
        "<tool_call></tool_call>", ("<tool_call>", "</tool_call>"),
        "I'll look.\n" + HERMES_CALLS, "I'll look.", calls=CALLS,
    ),
    "hermes, text alone": Written(
        "<tool_call>", ("<tool_call>", "</tool_call>"), "a < b <tool_cal \n", "a < b <tool_cal \n"
    ),
    "qwen, which thinks": Written(
        "<tool_call>{% if x %}<think></think>{% endif %}", ("<tool_call>", "</tool_call>", *THINK),
        "<think>\nWhere? I use\n\n a </tool.\n</think>\n\n" + HERMES_CALLS,
        reasoning="Where? I use\n\n a </tool.", calls=CALLS,
    ),
    "qwen, which doesn't": Written(
        "<tool_call>{% if x %}<think></think>{% endif %}", ("<tool_call>", "</tool_call>", *THINK),
        "\n<th is no tag\n", "\n<th is no tag\n",
    ),
    "qwen, whose reasoning is over": Written(
        "<tool_call><think></think>", ("<tool_call>", "</tool_call>", *THINK),
        HERMES_CALLS, calls=CALLS, prompt_end="<think>\n\n</think>\n\n",
    ),
    "deepseek, opened by the prompt": Written(
        "<｜tool▁calls▁begin｜>```json</think>", (*DEEPSEEK, *THINK),
        f"Hm.\n</think>\n\nOne moment. {DEEPSEEK[0]}{V3_CALL}get_weather\n```json\n{WEATHER}\n```{CALL_END}\n"
        f"{V3_CALL}get\n```json\n{BRACES}\n```{CALL_END}{DEEPSEEK[1]}",
        "One moment.", "Hm.", CALLS, "<think>\n",
    ),
    "deepseek 3.1": Written(
        "<｜tool▁calls▁begin｜>", DEEPSEEK,
        f"{DEEPSEEK[0]}{V31_CALL}get_weather<｜tool▁sep｜>{WEATHER}{CALL_END}"
        f"{V31_CALL}get<｜tool▁sep｜>{BRACES}{CALL_END}{DEEPSEEK[1]}",
        calls=CALLS,
    ),
    "llama": Written(
        "<|python_tag|>", ("<|python_tag|>",),
        f'<|python_tag|>{{"name": "get_weather", "parameters": {WEATHER}}}; {{"name": "get", "parameters": {BRACES}}}',
        calls=CALLS,
    ),
    "llama, without its tag": Written(
        '{"name": function name, "parameters": d}', ("<|python_tag|>",),
        f'{{"name": "get_weather", "parameters": {WEATHER}}}', calls=CALLS[:1],
    ),
    "llama, text alone": Written("<|python_tag|>", ("<|python_tag|>",), " A {text}", " A {text}"),
    "mistral": Written(
        "[TOOL_CALLS]", ("[TOOL_CALLS]",),
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER}}}, {{"name": "get", "arguments": {BRACES}}}]',
        calls=CALLS,
    ),
    "mistral, which thinks": Written(
        "[TOOL_CALLS][ARGS]{# [/THINK] #}", ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        f"[THINK]Where?[/THINK][TOOL_CALLS]get_weather[ARGS]{WEATHER}[TOOL_CALLS]get[ARGS]{BRACES}",
        reasoning="Where?", calls=CALLS,
    ),
    "gpt-oss": Written(
        "<|start|>assistant{# <|channel|><|message|> #}", HARMONY,
        "<|channel|>analysis<|message|>Where < is?<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>I'll look.<|end|><|start|>assistant<|channel|>"
        f"commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER}",
        "I'll look.", "Where < is?", CALLS[:1], "<|start|>assistant",
    ),
    "gpt-oss, text alone": Written(
        "<|start|>assistant{# <|channel|><|message|> #}", HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>In Bern <|.",
        "In Bern <|.", "Hm.", prompt_end="<|start|>assistant",
    ),
}  # fmt: skip


def format_of(written: Written, form: str = "special") -> tuple[AnswerFormat, Vocabulary]:
    """The format and vocabulary; the markers are special tokens, other tokens of their own, or several tokens each."""
    markers = {form: [*written.markers]} if form != "text" else {}
    tokenizer = chat_tokenizer(written.template, **markers)
    return answer_format(tokenizer), Vocabulary(tokenizer, len(tokenizer))


def read(parser: AnswerParser, parts: Iterable[str], is_stopped: bool = False) -> ParsedAnswer:
    answer = ParsedAnswer()
    for part in parts:
        answer.add(parser.feed(part))
    answer.add(parser.finish(is_stopped))
    return answer


def told(answer: ParsedAnswer) -> tuple[str, str, list[tuple[str, str]]]:
    return answer.content, answer.reasoning, [(call.name, call.arguments) for call in answer.tool_calls]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_however_it_is_cut(name: str) -> None:
    written = ANSWERS[name]
    answers, _ = format_of(written)
    request = AnswerRequest(written.prompt_end, functions=FUNCTIONS)
    text, expected = written.text, (written.content, written.reasoning, [*written.calls])
    assert told(read(answers.parser(request), text)) == expected
    for at in range(len(text) + 1):
        parser = answers.parser(request)
        answer = read(parser, (text[:at], text[at:]))
        assert told(answer) == expected, text[:at]
        assert (parser.num_calls, parser.is_complete) == (len(written.calls), True)
        assert len({call.id for call in answer.tool_calls}) == len(written.calls)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_ends_early_has_the_beginning_of_what_it_says(name: str) -> None:
    written = ANSWERS[name]
    answers, _ = format_of(written)
    request = AnswerRequest(written.prompt_end, functions=FUNCTIONS)
    for at in range(len(written.text)):
        parser = answers.parser(request)
        answer = read(parser, (written.text[:at],))
        assert told(answer) == told(read(answers.parser(request), written.text[:at]))
        beyond = answer.reasoning.removeprefix(written.reasoning).strip()  # a part of the marker at its end
        assert written.reasoning.startswith(answer.reasoning) or (at < len(written.text) and beyond in written.text)
        for call, (called, arguments) in zip(answer.tool_calls, written.calls, strict=False):
            assert call.name == called
            assert arguments.startswith(call.arguments)
            assert call is answer.tool_calls[-1] or call.arguments == arguments
        assert parser.is_complete == all(
            call.arguments == arguments for call, (_, arguments) in zip(answer.tool_calls, written.calls, strict=False)
        )


@pytest.mark.parametrize("name", [name for name, written in ANSWERS.items() if written.calls])
def test_a_call_that_a_stop_cuts_is_content_and_its_text_is_not_lost(name: str) -> None:
    written = ANSWERS[name]
    answers, _ = format_of(written)
    request = AnswerRequest(written.prompt_end, functions=FUNCTIONS, has_stops=True)
    begins = [written.text.index(arguments) for _, arguments in written.calls]
    names = [written.text.rindex(name, 0, at) for (name, _), at in zip(written.calls, begins, strict=True)]
    ends = [begin + len(arguments) for begin, (_, arguments) in zip(begins, written.calls, strict=True)]
    for at in range(len(written.text)):
        text, num_whole = written.text[:at], sum(end <= at for end in ends)
        for parts in ((text,), text):
            parser = answers.parser(request)
            answer = read(parser, parts, is_stopped=True)
            assert (parser.num_calls, parser.is_complete) == (num_whole, True), text
            assert [(call.name, call.arguments) for call in answer.tool_calls] == [*written.calls[:num_whole]]
            if not written.reasoning and not num_whole:
                assert answer.content == text
            if num_whole < len(ends) and names[num_whole] < at:
                call = answer.content.removeprefix(written.content)
                assert text.endswith(call)
                assert text[names[num_whole] :] in call


def test_a_call_that_a_length_cuts_has_the_part_of_its_arguments_where_stops_may_occur() -> None:
    answers, _ = format_of(ANSWERS["hermes"])
    request = AnswerRequest(functions=FUNCTIONS, has_stops=True)
    parser = answers.parser(request)
    text = HERMES_CALLS[: HERMES_CALLS.index("Bern") + 2]
    assert told(read(parser, text)) == ("", "", [("get_weather", '{"city": "Be')])
    assert (parser.num_calls, parser.is_complete) == (1, False)


def accepted(answers: AnswerFormat, vocabulary: Vocabulary, request: AnswerRequest, text: str) -> str:
    """The beginning of a text that the grammar of a request accepts; all of it only if it may end there."""
    rules = answers.grammar(request, library_special_tokens(vocabulary))
    parts: dict[str, Any] = {f"arguments_{n}": each.arguments for n, each in enumerate(request.functions)}
    if request.content is not None:
        parts["content"] = request.content
    state = Grammar(rules, parts=parts).start(vocabulary)
    tokenizer = vocabulary.tokenizer
    assert tokenizer is not None
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for index, token in enumerate(ids):
        if not state.mask()[token]:
            return str(tokenizer.decode(ids[:index]))
        state = state.advance(token)
    return text if state.is_accepting else text + "…"


@pytest.mark.parametrize("form", ["special", "added", "text"])
@pytest.mark.parametrize("name", ANSWERS)
def test_the_grammar_allows_the_answer_and_constrains_its_calls(name: str, form: str) -> None:
    written = ANSWERS[name]
    answers, vocabulary = format_of(written, form)
    if form == "text" and "python_tag" in written.text:
        pytest.skip("the tag is a special token")
    free = AnswerRequest(written.prompt_end, functions=FUNCTIONS)
    assert accepted(answers, vocabulary, free, written.text) == written.text
    for right, wrong in (('"days": 3', '"days": 30'), ('"Bern"', '"Basel"'), ("get_weather", "get_whether")):
        if written.calls:
            spoiled = written.text.replace(right, wrong)
            assert len(accepted(answers, vocabulary, free, spoiled)) < len(spoiled), wrong
    unknown = AnswerRequest(written.prompt_end, functions=FUNCTIONS[:1])
    if written.calls:
        assert len(accepted(answers, vocabulary, unknown, written.text)) < len(written.text)
    one = AnswerRequest(written.prompt_end, functions=FUNCTIONS, allows_several=False)
    assert (accepted(answers, vocabulary, one, written.text) == written.text) == (len(written.calls) < 2)
    forced = AnswerRequest(written.prompt_end, functions=FUNCTIONS, requires_call=True)
    has_content = bool(written.content) and "commentary" not in written.text
    assert (accepted(answers, vocabulary, forced, written.text) == written.text) == (
        bool(written.calls) and not has_content
    )


@pytest.mark.parametrize("marker", ["<tool_call>", "<think>"])
def test_text_cannot_spell_a_marker_that_is_a_token(marker: str) -> None:
    answers, vocabulary = format_of(ANSWERS["qwen, which thinks"])
    request = AnswerRequest(functions=FUNCTIONS)
    rules = answers.grammar(request, library_special_tokens(vocabulary))
    parts = {f"arguments_{n}": each.arguments for n, each in enumerate(FUNCTIONS)}
    state = Grammar(rules, parts=parts).start(vocabulary)
    *begun, last = byte_ids(f"a {marker}")
    for token in begun:
        assert state.mask()[token]
        state = state.advance(token)
    assert not state.mask()[last]


@pytest.mark.parametrize("name", ["qwen, which thinks", "deepseek, opened by the prompt", "mistral, which thinks"])
def test_content_is_constrained_after_the_reasoning(name: str) -> None:
    written = ANSWERS[name]
    content = AnswerRequest(written.prompt_end, content=JsonSchema({"enum": [12]}))
    for form in ("special", "added", "text"):
        answers, vocabulary = format_of(written, form)
        reasoning = re.match(r"(.|\n)*(</think>\n\n|\[/THINK\])", written.text)[0]  # type: ignore[index]
        for end in ("12", "\n12"):
            text = reasoning + end
            assert accepted(answers, vocabulary, content, text) == text
            assert told(read(answers.parser(content), text)) == ("12", written.reasoning, [])
        assert accepted(answers, vocabulary, content, reasoning + "13") == reasoning + "1"
        opened = bool(written.prompt_end)
        assert (accepted(answers, vocabulary, content, "12") == "12") != opened


def test_gpt_oss_has_its_content_in_the_final_channel() -> None:
    answers, vocabulary = format_of(ANSWERS["gpt-oss"])
    content = AnswerRequest("<|start|>assistant", content=JsonSchema({"enum": [12]}))
    begin = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    assert accepted(answers, vocabulary, content, begin + "12") == begin + "12"
    assert accepted(answers, vocabulary, content, begin + "13") == begin + "1"
    assert told(read(answers.parser(content), begin + "12<|return|>")) == ("12", "Hm.", [])
    opened = AnswerRequest("<|start|>assistant<|channel|>final<|message|>", content=JsonSchema({"enum": [12]}))
    assert accepted(answers, vocabulary, opened, "12") == "12"
    assert told(read(answers.parser(opened), "12")) == ("12", "", [])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>", "hermes"),
        ("<tool_call><function=", "json"),
        ("[TOOL_CALLS]", "mistral"),
        ("[TOOL_CALLS][ARGS]", "mistral_args"),
        ("<｜tool▁calls▁begin｜>```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
        ("<|python_tag|>", "llama3_json"),
        ("", "json"),
    ],
)
def test_a_format_is_found_by_its_template_or_selected_by_name(template: str, name: str) -> None:
    found: Any = answer_format(chat_tokenizer(template))
    assert found.syntax.name == name
    selected: Any = answer_format(chat_tokenizer("<tool_call>"), name)
    assert selected.syntax.name == name


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(RequestError, match=r"--tool-parser 'hermes3': it must be one of mistral, .*, json, gpt_oss"):
        answer_format(chat_tokenizer(""), "hermes3")
