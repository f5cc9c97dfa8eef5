"""Encodes the prompts of requests, within the server's limits."""

from collections.abc import Mapping
from typing import Any

from specdec.apps.serving.chat_template import template_field
from specdec.apps.serving.content_parts import text_of
from specdec.apps.serving.errors import ApiError
from specdec.errors import RequestError
from specdec.inputs.messages import has_media, processed
from specdec.inputs.processor import ProcessedPrompt
from specdec.layout import Shapes
from specdec.requests.prompts import encode, text_ids


class PromptEncoder:
    """Encodes prompts for one thread, and images and audio as far as that needs no model.

    Args:
        tokenizer, processor: used by no other thread; the processor is None if prompts can't have images or audio.
        max_tokens: the longest prompt accepted; None for the model's limit.
    """

    def __init__(self, tokenizer: Any, processor: Any, shapes: Shapes, max_tokens: int | None) -> None:
        self._tokenizer, self._processor = tokenizer, processor
        self._shapes, self._max_tokens = shapes, max_tokens
        self._longest_piece = max(map(len, tokenizer.get_vocab()))

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest prompt that fits."""
        positions = self._shapes.context_length
        return min(self._max_tokens or positions, positions)

    def ids(self, prompt: Any, param: str, template: Mapping[str, Any] | None = None) -> list[int]:
        """Return a prompt's tokens.

        Args:
            param: the request's field that has the prompt.
            template: options of the chat template.

        Raises:
            ApiError: if the prompt is too long, or is rejected.
        """
        self._check_size(prompt, param)
        try:
            ids = encode(prompt, self._tokenizer, self._shapes.vocab_size, template or {})
        except RequestError as error:
            at_fault = template_field(template) if template and self._is_taken_bare(prompt) else param
            raise ApiError(400, str(error), at_fault, "invalid_value") from None
        return self._checked(ids, param)

    def reference(self, text: str) -> list[int]:
        """Return the ids of a predicted answer, as far as an answer may be long.

        Raises:
            ApiError: if the text is rejected.
        """
        most = self._shapes.context_length
        text = text[: most * self._longest_piece]
        try:
            return text_ids(text, self._tokenizer, add_special_tokens=False)[:most] if text else []
        except RequestError as error:
            raise ApiError(400, str(error), "prediction", "invalid_value") from None

    def chat(self, messages: list[Any], template: Mapping[str, Any]) -> tuple[list[int], ProcessedPrompt | None]:
        """Return a conversation's tokens, and with images or audio also the prompt that a generator takes instead.

        Raises as ``ids``.
        """
        if not has_media(messages):
            return self.ids(messages, "messages", template), None
        if self._processor is None:
            message = "This server's model reads text alone: send parts of type text."
            raise ApiError(400, message, "messages", "invalid_value")
        self._check_size(messages, "messages")
        try:
            [prompt] = processed(messages, self._processor, template).prompts()
        except RequestError as error:
            raise ApiError(400, str(error), "messages", "invalid_value") from None
        return self._checked(prompt.ids, "messages"), prompt

    def _check_size(self, prompt: Any, param: str) -> None:
        size, most = _size_of(prompt), self.most_tokens
        longest = most * self._longest_piece
        if size > longest:  # encoding it would take seconds
            message = f"The prompt has {size} characters, and none of {most} tokens has more than {longest}."
            raise ApiError(400, message, param, "context_length_exceeded")

    def _checked(self, ids: list[int], param: str) -> list[int]:
        if self._max_tokens is not None and len(ids) > self._max_tokens:
            message = f"The prompt has {len(ids)} tokens, and this server takes {self._max_tokens}."
            raise ApiError(400, message, param, "context_length_exceeded")
        return ids

    def _is_taken_bare(self, messages: Any) -> bool:
        """Return True if the template accepts the messages without options."""
        try:
            encode(messages, self._tokenizer, self._shapes.vocab_size)
        except RequestError:
            return False
        return True


def _size_of(prompt: Any) -> int:
    """Return the number of characters of a text or of all messages; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(text_of(each["content"])) for each in prompt if isinstance(each, Mapping))
