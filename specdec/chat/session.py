"""A conversation under way: questions go to a generator, and answers come back as they are decoded."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from specdec.chat.conversation import Conversation, Turn
from specdec.decoding.result import Chunk, Result
from specdec.errors import RequestError, plural
from specdec.generator import Generator
from specdec.record import StepRecord
from specdec.requests.prompts import encode

_LEAST_ROOM = 32  # tokens; an answer that has no more isn't begun


class OutgrownError(RequestError):
    """The conversation leaves the model no positions for an answer."""


class _Stopped(Exception):  # noqa: N818 - it isn't an error
    """The user wants no more, while a prompt is being read."""


@dataclass
class Answer:
    """An answer, whole once its chunks have come.

    Attributes:
        settings: those it was decoded with, the seed among them.
        seconds: since the question, at each chunk.
        result: None for an answer that was stopped.
    """

    conversation: Conversation
    question: str
    settings: dict[str, Any]
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    num_first: int = 0
    result: Result | None = None

    def add(self, chunk: Chunk, seconds: float) -> None:
        """Take what a step brought."""
        self.text += chunk.text
        self.tokens.extend(chunk.token_ids)
        self.seconds.append(seconds)
        self.num_first = self.num_first or len(self.tokens)
        self.result = chunk.result

    @property
    def seconds_to_first(self) -> float:
        """From the question to the first token."""
        return self.seconds[0]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed after the first step, which includes prefill; None for an answer of one step."""
        took = self.seconds[-1] - self.seconds[0]
        return (len(self.tokens) - self.num_first) / took if took > 0 else None

    @property
    def tokens_per_step(self) -> float:
        """New tokens for each pass that brought any."""
        return len(self.tokens) / len(self.seconds)


def check_template(tokenizer: Any) -> None:
    """Raises RequestError for a tokenizer without a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "the model has no chat template, so it can't be talked to: take one that was trained for chat, "
            "such as --model smollm2, or continue a text with `specdec generate`"
        )


class Session:
    """A conversation with a model, whose keys and values stay from turn to turn.

    Args:
        generator: with a tokenizer that has a chat template.
        randomness: draws a seed for each answer while none is set.
        proposer: the strategy, as the name of an installed one with its options.
        settings: of the answers to come: ``temperature``, ``max_new_tokens``.

    Attributes:
        conversation: the turns so far; it may be replaced, as the other attributes may.
        seed: of each answer; None draws one.
        last: the last answer; None after ``undo`` and ``load``.
        latest: the answer that was decoded last, by whatever.
        again: the last answer that plain decoding has repeated.

    Raises:
        RequestError: for a model without a chat template.
    """

    def __init__(self, generator: Generator, randomness: Random, proposer: str = "auto", **settings: Any) -> None:
        check_template(generator.tokenizer)
        self.generator = generator
        self.settings = {"max_new_tokens": 512, **settings}
        self.conversation = Conversation()
        self.proposer = proposer
        self.seed: int | None = None
        self.last: Answer | None = None
        self.latest: Answer | None = None
        self.again: Answer | None = None
        self._context = generator.context()
        self._randomness = randomness
        self._is_stopping = False

    def ask(self, question: str) -> Iterator[Chunk]:
        """Decode the answer to a question; the turn is kept when the iterator ends or is closed.

        Raises:
            OutgrownError: where the conversation has no room for an answer.
            RequestError: for messages that the template refuses.
        """
        yield from self._turn(self.conversation, question)

    def retry(self) -> Iterator[Chunk]:
        """Ask the last question again, in place of its turn.

        Raises:
            RequestError: where there is none.
        """
        yield from self._turn(self.conversation.without_last(), self._last_turn().question)

    def undo(self) -> Turn:
        """Take back the last turn and return it.

        Raises:
            RequestError: where there is none.
        """
        turn = self._last_turn()
        self.conversation, self.last = self.conversation.without_last(), None
        return turn

    def plain(self) -> Iterator[Chunk]:
        """Decode the last answer once more, by plain decoding; the conversation stays as it is.

        Raises:
            RequestError: where there is none.
        """
        if self.last is None:
            raise RequestError("there is no answer to decode again: ask something first")
        most = len(self.last.tokens) if self.last.result is None else self.last.settings["max_new_tokens"]
        settings = self.last.settings | {"proposer": "autoregressive", "max_new_tokens": most}
        self.again = Answer(self.last.conversation, self.last.question, settings)
        yield from self._decoded(self.again)

    @property
    def is_same(self) -> bool:
        """True if the last answer and its plain decoding have the same tokens, as far as both went."""
        assert self.last is not None, "an answer was decoded again"
        assert self.again is not None, "an answer was decoded again"
        first, again = self.last.tokens, self.again.tokens
        return first == again if self.again.result is not None else first[: len(again)] == again

    def stop(self) -> None:
        """End the answer that is under way at the next pass; its iterator ends, and what came is kept."""
        self._is_stopping = True

    def drop_oldest(self, question: str) -> int:
        """Forget the oldest half of the turns, or as many more as leave room to answer a question; return how many.

        Raises:
            OutgrownError: where the question alone is too long; no turn is forgotten then.
        """
        num_turns = len(self.conversation.turns)
        for num_dropped in range((num_turns + 1) // 2, num_turns + 1):
            shorter = self.conversation.without_oldest(num_dropped)
            try:
                self._room(shorter.asking(question), self.settings["max_new_tokens"])
            except OutgrownError:
                if num_dropped == num_turns:
                    raise
            else:
                break
        self.conversation = shorter
        return num_dropped

    def close(self) -> None:
        """Let go of the keys and values."""
        self._context.close()

    def _turn(self, conversation: Conversation, question: str) -> Iterator[Chunk]:
        seed = self._randomness.getrandbits(32) if self.seed is None else self.seed
        answer = Answer(conversation, question, self.settings | {"seed": seed, "proposer": self.proposer})
        try:
            yield from self._decoded(answer, context=self._context)
        finally:
            if answer.tokens:
                self.last = answer
                self.conversation = conversation.followed_by(Turn(question=question, answer=answer.text))

    def _last_turn(self) -> Turn:
        if not self.conversation.turns:
            raise RequestError("nothing has been said yet")
        return self.conversation.turns[-1]

    def _decoded(self, answer: Answer, **options: Any) -> Iterator[Chunk]:
        self.latest, self._is_stopping = answer, False
        began, spent = time.perf_counter(), 0.0
        messages = answer.conversation.asking(answer.question)
        settings = answer.settings | {"max_new_tokens": self._room(messages, answer.settings["max_new_tokens"])}
        chunks = self.generator.stream(messages, on_step=self._check, **settings, **options)
        with closing(chunks), suppress(_Stopped):  # type: ignore[type-var]  # a generator
            while not self._is_stopping and (chunk := next(chunks, None)) is not None:
                spent += time.perf_counter() - began
                answer.add(chunk, spent)
                yield chunk
                began = time.perf_counter()  # showing it isn't decoding

    def _check(self, record: StepRecord) -> None:
        """Leave the reading of a prompt; an answer's own steps are kept before it ends."""
        if self._is_stopping and record.kind == "chunk":
            raise _Stopped

    def _room(self, messages: list[dict[str, str]], wanted: int) -> int:
        """The tokens that an answer may have.

        Raises:
            OutgrownError: where those are too few.
        """
        shapes = self.generator.shapes
        if shapes.max_positions is None:
            return wanted
        num_tokens = len(encode(messages, self.generator.tokenizer, shapes.vocab_size))
        room = shapes.max_positions - num_tokens
        if room < min(_LEAST_ROOM, wanted):
            raise OutgrownError(
                f"the conversation has {plural(num_tokens, 'token')} with this question, of the "
                f"{shapes.max_positions} that the model takes"
            )
        return min(room, wanted)
