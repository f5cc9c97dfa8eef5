"""Sessions with the built-in model: each answer is what the generator writes from scratch for the same messages."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from specdec import Generator, RequestError
from specdec.apps.chat.conversation import Turn
from specdec.apps.chat.session import OutgrownError, Session
from specdec.layout import Shapes
from specdec.requests.prompts import encode
from tests.support import byte_tokenizer

QUESTIONS = ["What is bread?", "And butter?", "Why is the sky blue?"]


@pytest.fixture(name="session")
def _session(built_in: tuple[Any, Any]) -> Iterator[Session]:
    generator = Generator(*built_in, proposer="autoregressive")
    session = Session(generator, Random(0), max_new_tokens=24)
    yield session
    session.close()
    generator.close()


def said(chunks: Iterator[Any]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_answer_is_the_one_from_scratch(session: Session, built_in: tuple[Any, Any], temperature: float) -> None:
    fresh = Generator(*built_in, proposer="autoregressive")
    session.settings["temperature"], messages = temperature, []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = said(session.ask(question))
        assert session.last is not None
        assert session.last.result is not None
        expected = fresh.generate(messages, max_new_tokens=24, temperature=temperature, seed=session.last.result.seed)
        assert session.last.result.token_ids == expected.token_ids
        assert answer == expected.text
        messages.append({"role": "assistant", "content": answer})
    assert [turn.question for turn in session.conversation.turns] == QUESTIONS
    assert session.last.result.stats.num_reused > 0


def test_an_answer_that_is_closed_or_stopped_is_kept_as_far_as_it_came(session: Session) -> None:
    session.settings["max_new_tokens"] = 60
    session.proposer = "autoregressive"
    chunks = session.ask(QUESTIONS[0])
    begun = "".join(next(chunks).text for _ in range(5))
    chunks.close()  # type: ignore[attr-defined]  # a generator
    assert session.conversation.turns == (Turn(question=QUESTIONS[0], answer=begun),)
    text = ""
    for number, chunk in enumerate(session.ask(QUESTIONS[1])):
        text += chunk.text
        if number == 6:
            session.stop()
    assert session.conversation.turns[-1].answer == text
    assert session.last is not None
    assert session.last.result is None
    assert len(session.last.tokens) == 7
    list(session.plain())
    assert session.is_same
    said(session.ask(QUESTIONS[2]))
    assert session.last.result is not None


def test_what_is_stopped_while_its_prompt_is_read_leaves_no_turn(session: Session) -> None:
    said(session.ask(QUESTIONS[0]))
    before, last = session.conversation, session.last
    generator = session.generator
    original = generator.stream

    def stopping_early(*arguments: Any, **options: Any) -> Any:
        session.stop()
        return original(*arguments, **options)

    generator.stream = stopping_early  # type: ignore[method-assign]
    assert list(session.ask("why? " * 150)) == []
    assert (session.conversation, session.last) == (before, last)


def test_undo_and_retry(session: Session) -> None:
    with pytest.raises(RequestError, match="there is no turn yet"):
        session.undo()
    with pytest.raises(RequestError, match="there is no turn yet"):
        list(session.retry())
    with pytest.raises(RequestError, match="no answer to decode again"):
        list(session.plain())
    session.settings["temperature"] = 1.0
    first = said(session.ask(QUESTIONS[0]))
    before = session.conversation
    said(session.ask(QUESTIONS[1]))
    assert session.undo().question == QUESTIONS[1]
    assert session.conversation == before
    assert said(session.retry()) != first
    session.seed = 5
    assert said(session.retry()) == said(session.retry())
    assert len(session.conversation.turns) == 1


def test_a_retry_that_is_refused_loses_nothing(session: Session) -> None:
    said(session.ask(QUESTIONS[0]))
    before, session.proposer = session.conversation, "no_such_strategy"
    with pytest.raises(Exception, match="no_such_strategy"):
        list(session.retry())
    assert session.conversation == before


def test_the_last_token_of_an_answer_takes_no_position(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    most = len(encode(messages, session.generator.tokenizer, session.generator.vocab_size))
    monkeypatch.setattr(Shapes, "context_length", most)
    assert session._room(messages, 1) == 1
    with pytest.raises(OutgrownError):
        session._room(messages, 2)


def test_plain_decoding_writes_the_same_and_a_planted_difference_is_seen(session: Session) -> None:
    session.settings["temperature"], session.proposer = 1.0, "prompt_lookup"
    said(session.ask(QUESTIONS[0]))
    before = session.conversation
    list(session.plain())
    assert session.is_same
    assert session.conversation == before
    assert session.again is not None
    assert session.last is not None
    session.again.tokens.append(3)
    assert not session.is_same
    session.again.tokens[:] = [token + 1 for token in session.last.tokens]
    assert not session.is_same


@pytest.fixture(name="short")
def _short(built_in: tuple[Any, Any]) -> Iterator[int]:
    """A limit of the built-in model's length."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(built_in[0].config, "max_position_embeddings", 1024)
        yield 1024


def test_a_conversation_that_outgrows_the_model_is_refused_until_turns_are_dropped(
    short: int, session: Session
) -> None:
    most = session.generator.shapes.max_positions
    assert most == short

    def talk() -> None:
        for number in range(100):
            said(session.ask(f"Tell me {'more and ' * 50} more about number {number}."))

    with pytest.raises(OutgrownError, match=f"tokens with this question, and the model's limit is {most}"):
        talk()
    num_turns = len(session.conversation.turns)
    assert num_turns > 2
    before = session.conversation
    with pytest.raises(OutgrownError):
        session.drop_oldest("more and " * most)
    assert session.conversation == before
    assert session.drop_oldest(QUESTIONS[0]) == (num_turns + 1) // 2
    assert len(session.conversation.turns) == num_turns // 2
    assert said(session.ask(QUESTIONS[0]))


def test_a_model_without_a_chat_template_is_refused(built_in: tuple[Any, Any]) -> None:
    generator = Generator(built_in[0], byte_tokenizer.trained(), proposer="autoregressive")
    with pytest.raises(RequestError, match=r"no chat template.*--model smollm2"):
        Session(generator, Random(0))
