"""A tokenizer's fingerprint: files of token ids say by it whose ids they hold."""

from hashlib import sha256
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from specdec.errors import ModelError


class Fingerprint(BaseModel):
    """The name of a tokenizer and a hash of its vocabulary, both empty where ids came without a tokenizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    digest: str = ""

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """The fingerprint of a transformers tokenizer; an empty one for what has no vocabulary to be asked for."""
        if not hasattr(tokenizer, "get_vocab"):
            return cls()
        digest = sha256()
        for token, number in sorted(tokenizer.get_vocab().items()):
            digest.update(f"{number} {token}\n".encode(errors="surrogatepass"))
        return cls(name=str(getattr(tokenizer, "name_or_path", "")), digest=digest.hexdigest())

    def check(self, tokenizer: Any, holder: str, remedy: str) -> None:
        """Refuse a file whose ids are another tokenizer's. Where either is unknown there is nothing to compare.

        Args:
            holder: the file, as a message begins.
            remedy: what to do, as a message ends.

        Raises:
            ModelError: naming both tokenizers.
        """
        own = Fingerprint.of(tokenizer)
        if self.digest and own.digest and self.digest != own.digest:
            raise ModelError(
                f"{holder} was made with the tokenizer {self.name or 'of another model'!r} ({self.digest[:8]}), and "
                f"the model's own is {own.name!r} ({own.digest[:8]}): {remedy}"
            )
