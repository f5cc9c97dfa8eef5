"""A chat session: passes questions to a generator, and yields the answers while they are decoded."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from specdec.apps.chat.conversation import Conversation, Turn
from specdec.decoding.result import Chunk, Result
from specdec.errors import RequestError, plural
from specdec.generator import Generator
from specdec.inputs.messages import has_media, processed
from specdec.record import StepRecord
from specdec.requests.prompts import encode

_LEAST_ROOM = 32  # tokens; an answer with less room isn't started


class OutgrownError(RequestError):
    """Raised if the conversation leaves no positions for an answer."""


class _Stopped(Exception):  # noqa: N818 - it isn't an error
    """Raised to stop an answer during prefill."""


@dataclass
class ChatAnswer:
    """An answer, complete after its last chunk.

    Attributes:
        settings: the settings used, including the seed.
        attachments: images and recordings before the question.
        seconds: the time of each chunk since the question.
        result: None for an answer that was stopped.
    """

    conversation: Conversation
    question: str
    settings: dict[str, Any]
    attachments: tuple[dict[str, Any], ...] = ()
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    num_first: int = 0
    result: Result | None = None

    def add(self, chunk: Chunk, seconds: float) -> None:
        """Add a step's chunk."""
        self.text += chunk.text
        self.tokens.extend(chunk.token_ids)
        self.seconds.append(seconds)
        self.num_first = self.num_first or len(self.tokens)
        self.result = chunk.result

    @property
    def seconds_to_first(self) -> float:
        """Seconds from the question to the first token."""
        return self.seconds[0]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first step, which includes prefill; None if there was only one step."""
        took = self.seconds[-1] - self.seconds[0]
        return (len(self.tokens) - self.num_first) / took if took > 0 else None

    @property
    def tokens_per_step(self) -> float:
        """New tokens per pass, without passes that only prefill."""
        return len(self.tokens) / len(self.seconds)


def check_template(tokenizer: Any) -> None:
    """Raise RequestError for a tokenizer without a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "the model has no chat template, so it can't chat: use a model trained for chat, "
            "such as --model smollm2, or continue a text with `specdec generate`"
        )


class Session:
    """A conversation with a model, whose keys and values are cached from turn to turn.

    Args:
        generator: has a tokenizer with a chat template.
        randomness: draws a seed for each answer if none is set.
        proposer: the name of an installed strategy, with its options.
        settings: for later answers: ``temperature``, ``max_new_tokens``.

    Attributes:
        conversation: the turns so far; like the other attributes, it may be replaced.
        seed: the seed of each answer; None to draw one.
        attached: images and recordings for the next question, see ``attachment``; empty once it is answered.
        last: the last turn's answer; None after ``undo`` and ``load``.
        latest: the answer decoded last, by a strategy or by plain decoding.
        again: plain decoding's latest repetition of an answer.

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
        self.attached: tuple[dict[str, Any], ...] = ()
        self.last: ChatAnswer | None = None
        self.latest: ChatAnswer | None = None
        self.again: ChatAnswer | None = None
        self._context = generator.context()
        self._randomness = randomness
        self._is_stopping = False

    def ask(self, question: str) -> Iterator[Chunk]:
        """Decode the answer to a question; the turn is added when the iterator ends or is closed.

        Raises:
            OutgrownError: if the conversation has no room for an answer.
            RequestError: for messages that the template rejects, and images or audio that the model doesn't take.
        """
        yield from self._turn(self.conversation, question, self.attached)

    def retry(self) -> Iterator[Chunk]:
        """Decode another answer to the last question, which replaces its turn.

        Raises:
            RequestError: if there is no turn.
        """
        last = self._last_turn()
        yield from self._turn(self.conversation.without_last(), last.question, last.attachments)

    def undo(self) -> Turn:
        """Remove the last turn and return it.

        Raises:
            RequestError: if there is no turn.
        """
        turn = self._last_turn()
        self.conversation, self.last = self.conversation.without_last(), None
        return turn

    def plain(self) -> Iterator[Chunk]:
        """Decode the last answer again by plain decoding; the conversation doesn't change.

        Raises:
            RequestError: if there is no answer.
        """
        if self.last is None:
            raise RequestError("there is no answer to decode again: ask a question first")
        most = len(self.last.tokens) if self.last.result is None else self.last.settings["max_new_tokens"]
        settings = self.last.settings | {"proposer": "autoregressive", "max_new_tokens": most}
        self.again = ChatAnswer(self.last.conversation, self.last.question, settings, self.last.attachments)
        yield from self._decoded(self.again)

    @property
    def is_same(self) -> bool:
        """Return True if the last answer and its plain decoding have the same tokens, up to the shorter one's end."""
        assert self.last is not None, "an answer was decoded again"
        assert self.again is not None, "an answer was decoded again"
        first, again = self.last.tokens, self.again.tokens
        return first == again if self.again.result is not None else first[: len(again)] == again

    def stop(self) -> None:
        """End the current answer at the next pass; its iterator ends, and the text so far is kept."""
        self._is_stopping = True

    def drop_oldest(self, question: str) -> int:
        """Drop at least half of the turns, oldest first, until a question can be answered; return their number.

        Raises:
            OutgrownError: if the question alone is too long; no turn is dropped then.
        """
        num_turns = len(self.conversation.turns)
        for num_dropped in range((num_turns + 1) // 2, num_turns + 1):
            shorter = self.conversation.without_oldest(num_dropped)
            try:
                self._room(shorter.asking(question, self.attached), self.settings["max_new_tokens"])
            except OutgrownError:
                if num_dropped == num_turns:
                    raise
            else:
                break
        self.conversation = shorter
        return num_dropped

    def close(self) -> None:
        """Release the keys and values."""
        self._context.close()

    def _turn(
        self, conversation: Conversation, question: str, attachments: tuple[dict[str, Any], ...]
    ) -> Iterator[Chunk]:
        seed = self._randomness.getrandbits(32) if self.seed is None else self.seed
        settings = self.settings | {"seed": seed, "proposer": self.proposer}
        answer = ChatAnswer(conversation, question, settings, attachments)
        try:
            yield from self._decoded(answer, context=self._context)
        finally:
            if answer.tokens:
                self.last, self.attached = answer, ()
                turn = Turn(question=question, answer=answer.text, attachments=attachments)
                self.conversation = conversation.followed_by(turn)

    def _last_turn(self) -> Turn:
        if not self.conversation.turns:
            raise RequestError("there is no turn yet")
        return self.conversation.turns[-1]

    def _decoded(self, answer: ChatAnswer, **options: Any) -> Iterator[Chunk]:
        self.latest, self._is_stopping = answer, False
        began, spent = time.perf_counter(), 0.0
        messages = answer.conversation.asking(answer.question, answer.attachments)
        settings = answer.settings | {"max_new_tokens": self._room(messages, answer.settings["max_new_tokens"])}
        chunks = self.generator.stream(messages, on_step=self._check, **settings, **options)
        with closing(chunks), suppress(_Stopped):  # type: ignore[type-var]  # a generator
            while not self._is_stopping and (chunk := next(chunks, None)) is not None:
                spent += time.perf_counter() - began
                answer.add(chunk, spent)
                yield chunk
                began = time.perf_counter()  # the time to show it doesn't count

    def _check(self, record: StepRecord) -> None:
        """Stop during prefill, if requested; later steps are finished before the answer ends."""
        if self._is_stopping and record.kind == "chunk":
            raise _Stopped

    def _room(self, messages: list[dict[str, Any]], wanted: int) -> int:
        """Return the number of tokens that an answer may have.

        Raises:
            OutgrownError: if it is too small.
        """
        shapes = self.generator.shapes
        num_tokens = self._num_tokens(messages)
        room = shapes.context_length - num_tokens + 1  # the last token takes no position
        if room < min(_LEAST_ROOM, wanted):
            raise OutgrownError(
                f"the conversation has {plural(num_tokens, 'token')} with this question, and the model's limit is "
                f"{shapes.context_length}"
            )
        return min(room, wanted)

    def _num_tokens(self, messages: list[dict[str, Any]]) -> int:
        generator = self.generator
        if not has_media(messages):
            return len(encode(messages, generator.tokenizer, generator.shapes.vocab_size))
        if generator.processor is None and (error := generator.refusals([messages])[0]) is not None:
            raise error
        [prompt] = processed(messages, generator.processor, {}).prompts()
        return len(prompt.ids)
