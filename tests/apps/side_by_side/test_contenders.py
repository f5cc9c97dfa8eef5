"""Both sides decode what plain decoding does, and neither is charged for what is drawn."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from specdec import Generator
from specdec.apps.side_by_side import contenders
from specdec.apps.side_by_side.contenders import Contender, SpecdecContender, Stopwatch, TransformersContender
from specdec.apps.side_by_side.questions import QUESTIONS, WARM_UP, Question, built_in_questions
from tests.support.built_in_model import own_built_in
from tests.support.plain import decode_model

PROMPT = [5, 6, 7, 8]
NUM_TOKENS = 12


@pytest.fixture(name="sides")
def _sides() -> list[Contender]:
    model, tokenizer = own_built_in()
    return [TransformersContender(model), SpecdecContender(Generator(model, tokenizer, weights="stock"))]


def test_both_write_what_plain_decoding_writes_and_show_each_token_once(
    built_in: tuple[Any, Any], sides: list[Contender]
) -> None:
    model, _ = built_in
    end = model.generation_config.eos_token_id
    expected = decode_model(model, PROMPT, NUM_TOKENS, None, eos=[end] if isinstance(end, int) else end)
    for side in sides:
        shown: list[int] = []
        times: list[float] = []

        def show(ids: Sequence[int], seconds: float, shown: list[int] = shown, times: list[float] = times) -> None:
            shown += ids
            times.append(seconds)

        answer = side.answer(PROMPT, NUM_TOKENS, show)
        assert list(answer.token_ids) == shown == expected
        assert 0 < answer.num_steps <= len(expected)
        assert times == sorted(times)
        assert 0 < times[0] < times[-1] <= answer.seconds
        assert answer.tokens_per_second == len(expected) / answer.seconds


def test_neither_is_charged_for_what_is_drawn(sides: list[Contender], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(contenders, "perf_counter", lambda: now[0])

    def draw(*_: Any) -> None:
        now[0] += 100.0

    for side in sides:
        assert side.answer(PROMPT, NUM_TOKENS, draw).seconds == pytest.approx(0.0, abs=1e-9)


def test_a_stopwatch_leaves_out_pauses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(contenders, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    now[0] += 2
    with watch.paused():
        now[0] += 5
    now[0] += 1
    assert watch.seconds == 3.0

    def interrupted() -> None:
        with watch.paused():
            now[0] += 7
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert watch.seconds == 3.0


def test_a_models_own_sampling_and_penalties_are_off_on_both_sides(
    built_in: tuple[Any, Any], sides: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = built_in
    expected = sides[1].answer(PROMPT, NUM_TOKENS, lambda *_: None).token_ids
    own = GenerationConfig(do_sample=True, temperature=9.0, repetition_penalty=3.0, max_length=7, eos_token_id=0)
    monkeypatch.setattr(model, "generation_config", own)
    torch.manual_seed(0)
    assert TransformersContender(model).answer(PROMPT, NUM_TOKENS, lambda *_: None).token_ids == expected
    assert model.generation_config.eos_token_id == 0


def test_questions_are_of_three_kinds_and_go_through_a_chat_template(built_in: tuple[Any, Any]) -> None:
    _, tokenizer = built_in
    assert len({question.kind for question in QUESTIONS}) == len(QUESTIONS) == 3
    assert WARM_UP.text not in {question.text for question in QUESTIONS}
    for question in (*QUESTIONS, WARM_UP):
        text = tokenizer.decode(question.encoded(tokenizer))
        assert question.text in text
        assert text != question.text


def test_the_built_in_models_instructions_alone_go_through_its_template(built_in: tuple[Any, Any]) -> None:
    _, tokenizer = built_in
    asked, *continued = built_in_questions()
    ids = tokenizer(f"<|user|>\n{asked.text}<|end|>\n<|assistant|>\n")["input_ids"]
    assert asked.encoded(tokenizer) == ids
    assert [each.encoded(tokenizer) for each in continued] == [tokenizer(each.text)["input_ids"] for each in continued]


def test_a_model_without_a_template_continues_the_text(
    built_in: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built_in[1], "chat_template", None)
    assert Question("x", "# heapq").encoded(built_in[1]) == built_in[1]("# heapq")["input_ids"]
