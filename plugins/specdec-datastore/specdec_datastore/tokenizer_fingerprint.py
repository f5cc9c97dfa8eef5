"""A tokenizer's fingerprint, stored in files of token ids to identify the tokenizer."""

from hashlib import sha256
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from specdec.errors import ModelError


class TokenizerFingerprint(BaseModel):
    """The name of a tokenizer and a hash of its vocabulary; both are empty if the tokenizer is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    digest: str = ""

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """Return the fingerprint of a transformers tokenizer; an empty one for an object without a vocabulary."""
        if not hasattr(tokenizer, "get_vocab"):
            return cls()
        digest = sha256()
        for token, number in sorted(tokenizer.get_vocab().items()):
            digest.update(f"{number} {token}\n".encode(errors="surrogatepass"))
        return cls(name=str(getattr(tokenizer, "name_or_path", "")), digest=digest.hexdigest())

    def check(self, tokenizer: Any, holder: str, remedy: str) -> None:
        """Raise an error if a file's ids are of another tokenizer, unless one of the two is unknown.

        Args:
            holder: the file, as the start of the message.
            remedy: what to do, as the end of the message.

        Raises:
            ModelError: with both tokenizers' names.
        """
        own = TokenizerFingerprint.of(tokenizer)
        if self.digest and own.digest and self.digest != own.digest:
            raise ModelError(
                f"{holder} was made with the tokenizer {self.name or 'of another model'!r} ({self.digest[:8]}), and "
                f"the model's own is {own.name!r} ({own.digest[:8]}): {remedy}"
            )
