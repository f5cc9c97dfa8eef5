"""Plans of answers: which special tokens their text has, and where their reasoning begins."""

from collections.abc import Sequence
from typing import Any

import pytest

from specdec.apps.serving.answer_constraints import AnswerPlan, AnswerPlanner, RequestedAnswer
from specdec.apps.serving.parsed_answer import ParsedAnswer
from specdec.apps.serving.schemas import ChatBody
from specdec.constraints import Vocabulary
from specdec.decoding.text.detokenizer import TextDecoder
from tests.support.byte_tokenizer import byte_ids
from tests.support.chat_models import chat_tokenizer

pytest.importorskip("llguidance")

THINK, TURN_END = ("<think>", "</think>"), "<|im_end|>"
HARMONY = "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"


def plan_of(tokenizer: Any, prompt: Sequence[int], begun: str | None = None) -> AnswerPlan:
    body = ChatBody.model_validate({"model": "demo", "messages": [{"role": "user", "content": "?"}]})
    planner = AnswerPlanner(tokenizer, Vocabulary(tokenizer, len(tokenizer)), None)
    return planner.chat(RequestedAnswer.of_chat(body), prompt, begun, shows_special=False)


def read(tokenizer: Any, plan: AnswerPlan, ids: Sequence[int], num_tokens: int) -> ParsedAnswer:
    """The answer of these tokens, in steps of ``num_tokens``."""
    skips = not plan.shows_special
    decoder = TextDecoder(tokenizer, skip_special_tokens=skips, hidden_token_ids=plan.hidden_token_ids)
    answer, parser = ParsedAnswer(), plan.parser()
    for start in range(0, len(ids), num_tokens):
        for token in ids[start : start + num_tokens]:
            decoder.push(token)
        answer.add(parser.feed(decoder.take()))
    answer.add(parser.feed(decoder.finish()))
    answer.add(parser.finish(is_stopped=True))
    return answer


def test_a_special_token_is_omitted_and_its_name_as_text_is_shown_whatever_the_steps() -> None:
    tokenizer = chat_tokenizer("{# <think></think> #}", special=[*THINK, TURN_END])
    begin, end, turn_end = tokenizer.convert_tokens_to_ids([*THINK, TURN_END])
    said = f"ChatML writes {TURN_END} here"
    ids = [begin, *byte_ids("hm"), turn_end, end, *byte_ids(said), turn_end, *byte_ids("é")[:1], turn_end]
    plan = plan_of(tokenizer, byte_ids("user: ?"))
    assert plan.shows_special
    for num_tokens in (1, 2, 5, len(ids)):
        answer = read(tokenizer, plan, ids, num_tokens)
        assert (answer.reasoning, answer.content) == ("hm", f"{said}\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("num_tokens", [10, 1000])
def test_reasoning_of_any_length_is_continued(num_tokens: int) -> None:
    tokenizer = chat_tokenizer("{# <think></think> #}", special=THINK)
    begin, end = tokenizer.convert_tokens_to_ids([*THINK])
    begun = "a" * num_tokens
    for prompt, text in (
        ([*byte_ids("user: ?"), begin, *byte_ids(begun)], f"<think>{begun}"),
        ([*byte_ids("user: ?"), begin, *byte_ids(begun)], begun),  # the template opens the reasoning
    ):
        plan = plan_of(tokenizer, prompt, text)
        answer = read(tokenizer, plan, [*byte_ids("b"), end, *byte_ids("c")], 1)
        assert (answer.reasoning, answer.content) == ("b", "c")


@pytest.mark.parametrize("begun", ["", "a", "a <think> is a tag", "<think>b</think>a"])
def test_reasoning_that_an_earlier_message_leaves_open_is_not_continued(begun: str) -> None:
    tokenizer = chat_tokenizer("{# <think></think> #}", special=THINK)
    begin, end = tokenizer.convert_tokens_to_ids([*THINK])
    last = [begin, *byte_ids("b"), end, *byte_ids("a")] if "</think>" in begun else byte_ids(begun) if begun else []
    prompt = [*byte_ids("assistant: "), begin, *byte_ids("hm user: <think> is a tag? assistant: "), *last]
    answer = read(tokenizer, plan_of(tokenizer, prompt, begun), byte_ids("c"), 1)
    assert (answer.reasoning, answer.content) == ("", "c")


@pytest.mark.parametrize("num_tokens", [10, 1000])
def test_a_channel_of_any_length_is_continued(num_tokens: int) -> None:
    tokenizer = chat_tokenizer("{# <|channel|><|message|> #}", special=HARMONY)
    start, end, channel, message = tokenizer.convert_tokens_to_ids([*HARMONY[:4]])
    analysis = [start, *byte_ids("assistant"), channel, *byte_ids("analysis"), message, *byte_ids("a" * num_tokens)]
    final = [start, *byte_ids("assistant"), channel, *byte_ids("final"), message, *byte_ids("c")]
    plan = plan_of(tokenizer, analysis, "a" * num_tokens)
    answer = read(tokenizer, plan, [*byte_ids("b"), end, *final], 1)
    assert (answer.reasoning, answer.content) == ("b", "c")
