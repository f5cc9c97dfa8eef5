"""Where a request's texts end: stop strings, special tokens among them, token ids, and the model's own end of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from specdec.serving.errors import ApiError
from specdec.serving.schemas import Sampling

_MOST_STRINGS = 16  # besides special tokens; each is searched for in every step's text


@dataclass(frozen=True, slots=True)
class TextEnds:
    """The ends of a request's texts.

    Attributes:
        strings: searched for in the text.
        tokens: ids that end the text besides the model's own. A stop string that is a special token is one of them:
            such a token never shows in text.
        own: the model's own, unless the request ignores them.
        least: tokens before which no id ends the text.
        vocab_size: of the model.
    """

    strings: tuple[str, ...]
    tokens: tuple[int, ...]
    own: tuple[int, ...]
    least: int
    vocab_size: int

    @classmethod
    def of(cls, body: Sampling, own: Sequence[int], special: Mapping[str, int], vocab_size: int) -> Self:
        """The ends that a request asks for; ``special`` has a tokenizer's special tokens by their text."""
        named = [special[text] for text in body.stop or () if text in special]
        return cls(
            strings=tuple(text for text in body.stop or () if text not in special),
            tokens=(*(body.stop_token_ids or ()), *(token for token in named if token < vocab_size)),
            own=() if body.ignore_eos else tuple(own),
            least=body.min_tokens or 0,
            vocab_size=vocab_size,
        )

    def check(self) -> None:
        """Refuse what can't be honoured.

        Raises:
            ApiError: with the field.
        """
        if len(self.strings) > _MOST_STRINGS:
            message = f"stop has {len(self.strings)} strings, and {_MOST_STRINGS} are allowed."
            raise ApiError(400, message, "stop", "invalid_value")
        if unknown := [token for token in self.tokens if token >= self.vocab_size]:
            message = f"stop_token_ids: {unknown[0]} is outside the vocabulary of {self.vocab_size}."
            raise ApiError(400, message, "stop_token_ids", "invalid_value")

    @property
    def settings(self) -> dict[str, Any]:
        """The same as settings of a generation."""
        ids = tuple(dict.fromkeys((*self.own, *self.tokens)))
        settings: dict[str, Any] = {"stop": self.strings, "eos_token_id": ids}
        return settings | ({"min_new_tokens": self.least} if self.least and ids else {})
