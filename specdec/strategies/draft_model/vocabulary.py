"""The relation of a drafter's tokens to the target's: the same ids, some shared strings, or nothing but text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from specdec.errors import ModelError

_REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
_LOOK_BEHIND = 16  # committed tokens that are encoded along with a draft, so that it joins on where they end


class Vocabulary(ABC):
    """Between the drafter's ids and the target's."""

    @abstractmethod
    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        """The target's tokens as the drafter would have written them."""

    @abstractmethod
    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """The drafter's logits for the target's vocabulary, shape ``(vocab,)``, -inf for what it can't say."""

    @abstractmethod
    def to_draft(self, token: int) -> int | None:
        """The drafter's id for a target's token; None where it has none."""


class SameVocabulary(Vocabulary):
    """One tokenizer; either model's embedding may be padded beyond it."""

    def __init__(self, target_size: int, draft_size: int) -> None:
        self._missing = target_size - draft_size
        self._draft_size = draft_size

    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        # A negative padding cuts the drafter's own padding off.
        return torch.nn.functional.pad(logits, (0, self._missing), value=-torch.inf) if self._missing else logits

    def to_draft(self, token: int) -> int | None:
        return token if token < self._draft_size else None


class SharedVocabulary(Vocabulary):
    """Token-level intersection: the drafter's distribution over the strings that both tokenizers have, renormalised.

    Timor et al. 2025, arXiv 2502.05202, section 3.3 (TLI). Committed tokens that are not shared are encoded anew.
    Strings are compared as the tokenizers spell them, so that families with another sign for a space share few.
    """

    def __init__(self, target: Any, draft: Any, target_size: int) -> None:
        known = draft.get_vocab()
        pairs = sorted(
            (ours, known[token]) for token, ours in target.get_vocab().items() if token in known and ours < target_size
        )
        if not pairs:
            raise ModelError("the drafter's tokenizer shares no token with the target's: use vocabulary='text'")
        self._target, self._draft = target, draft
        self._target_size = target_size
        self._ours = torch.tensor([ours for ours, _ in pairs])
        self._theirs = torch.tensor([theirs for _, theirs in pairs])
        self._to_draft: dict[int, int] = dict(pairs)

    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        ids: list[int] = []
        for is_shared, group in groupby(tokens, self._to_draft.__contains__):
            run = list(group)
            ids += [self._to_draft[token] for token in run] if is_shared else self._encoded(run)
        return ids

    def _encoded(self, tokens: Sequence[int]) -> list[int]:
        return encode(self._draft, decode(self._target, tokens))

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        mapped = logits.new_full((self._target_size,), -torch.inf)
        mapped[self._ours.to(logits.device)] = logits[self._theirs.to(logits.device)]
        return mapped

    def to_draft(self, token: int) -> int | None:
        return self._to_draft.get(token)


class TextVocabulary:
    """Nothing but text in common: drafts are written by the drafter and encoded anew for the target.

    Timor et al. 2025, arXiv 2502.05202, section 3.1 (SLEM). Such drafts have no q.
    """

    def __init__(self, target: Any, draft: Any) -> None:
        self._target, self._draft = target, draft

    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        """The target's tokens as the drafter would have written them."""
        return encode(self._draft, decode(self._target, tokens))

    def to_target(self, tokens: Sequence[int], context: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Return the target's tokens for what was drafted after ``context``, the drafter's view of ``tokens``."""
        tail = context[-_LOOK_BEHIND:]
        before = decode(self._draft, tail)
        text = decode(self._draft, [*tail, *drafted])[len(before) :].split(_REPLACEMENT)[0]
        recent = tokens[-_LOOK_BEHIND:]
        known = decode(self._target, recent)
        joined = encode(self._target, known + text)
        for cut in range(max(0, len(recent) - 4), len(joined)):
            if decode(self._target, joined[:cut]) == known:
                return joined[cut:]
        return encode(self._target, text)  # a token would span the boundary


def encode(tokenizer: Any, text: str) -> list[int]:
    """Text as ids, without the special tokens that a tokenizer puts around a whole prompt."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Ids as text, to the letter."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
