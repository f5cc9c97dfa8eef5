"""The end conditions of a request's texts: stop strings, stop tokens, and the model's own end of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.schemas import Sampling

_MOST_STRINGS = 16  # besides special tokens; each is searched in every step's text


@dataclass(frozen=True, slots=True)
class TextEnds:
    """The end conditions of a request's texts.

    Attributes:
        strings: stop strings.
        tokens: ids that end the text besides the model's own. They include stop strings that are special tokens, since
            these never occur in the text.
        own: the model's own end-of-text ids, unless the request ignores them.
        least: the minimum number of tokens; no id ends the text before.
        vocab_size: of the model.
    """

    strings: tuple[str, ...]
    tokens: tuple[int, ...]
    own: tuple[int, ...]
    least: int
    vocab_size: int

    @classmethod
    def of(cls, body: Sampling, own: Sequence[int], special: Mapping[str, int], vocab_size: int) -> Self:
        """Return a request's end conditions; ``special`` has the tokenizer's special tokens by text."""
        named = [special[text] for text in body.stop or () if text in special]
        return cls(
            strings=tuple(text for text in body.stop or () if text not in special),
            tokens=(*(body.stop_token_ids or ()), *(token for token in named if token < vocab_size)),
            own=() if body.ignore_eos else tuple(own),
            least=body.min_tokens or 0,
            vocab_size=vocab_size,
        )

    def check(self) -> None:
        """Check the limits.

        Raises:
            ApiError: with the invalid field.
        """
        if len(self.strings) > _MOST_STRINGS:
            message = f"stop has {len(self.strings)} strings, and {_MOST_STRINGS} are allowed."
            raise ApiError(400, message, "stop", "invalid_value")
        if unknown := [token for token in self.tokens if token >= self.vocab_size]:
            message = f"stop_token_ids: {unknown[0]} is outside the vocabulary of {self.vocab_size}."
            raise ApiError(400, message, "stop_token_ids", "invalid_value")

    @property
    def settings(self) -> dict[str, Any]:
        """Return the end conditions as settings of ``Generator.generate``."""
        ids = tuple(dict.fromkeys((*self.own, *self.tokens)))
        settings: dict[str, Any] = {"stop": self.strings, "eos_token_id": ids}
        return settings | ({"min_new_tokens": self.least} if self.least and ids else {})
