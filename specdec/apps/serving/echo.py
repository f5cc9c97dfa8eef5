"""A completion's prompt, which ``echo`` puts in front of the completion."""

from dataclasses import dataclass
from typing import Any, Self

from specdec.decoding.text.detokenizer import TextDecoder


@dataclass(frozen=True, slots=True)
class Echo:
    """The text of a prompt.

    Attributes:
        offsets: of each token, the character of ``text`` at which the token's text starts.
    """

    text: str
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, prompt: str | list[int], ids: list[int], tokenizer: Any, skips_special_tokens: bool) -> Self:
        """Return the echo of a prompt: of a text the text itself, of token ids what they decode to.

        Args:
            ids: the prompt's token ids, which may begin with tokens that the text doesn't show.
        """
        is_text = isinstance(prompt, str)
        decoder = TextDecoder(tokenizer, skip_special_tokens=skips_special_tokens and not is_text)
        decoded = decoder.text_of(ids)
        text = prompt if isinstance(prompt, str) else decoded
        num_hidden = len(decoded) - len(text) if decoded.endswith(text) else 0
        return cls(text, tuple(min(max(0, offset - num_hidden), len(text)) for offset in decoder.offsets))
