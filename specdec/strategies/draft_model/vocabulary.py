"""Mappings between the draft model's tokens and the target's: by id, by token string, or by text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from specdec.errors import ModelError, plural
from specdec.strategies.host import Host

_REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
_LOOK_BEHIND = 16  # committed tokens that are encoded with a draft, since tokens depend on the text before them


class DraftVocabulary(ABC):
    """Maps between the draft model's ids and the target's."""

    @abstractmethod
    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the target's tokens as the draft model's ids."""

    @abstractmethod
    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the draft model's logits over the target's vocabulary, ``(vocab,)``; -inf for tokens that it lacks."""

    @abstractmethod
    def to_draft(self, token: int) -> int | None:
        """Return the draft model's id of a target token, or None if it has none."""


class SameVocabulary(DraftVocabulary):
    """Both models use one tokenizer; the embedding of either may be padded."""

    def __init__(self, target_size: int, draft_size: int) -> None:
        self._missing = target_size - draft_size
        self._draft_size = draft_size

    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        # A negative padding cuts the draft model's own padding off.
        return torch.nn.functional.pad(logits, (0, self._missing), value=-torch.inf) if self._missing else logits

    def to_draft(self, token: int) -> int | None:
        return token if token < self._draft_size else None


class SharedVocabulary(DraftVocabulary):
    """Token-level intersection: the draft model's distribution over the strings of both tokenizers, renormalised.

    Timor et al. 2025, arXiv 2502.05202, section 3.3 (TLI). Committed tokens that aren't shared are encoded again.
    Strings are compared as the tokenizers spell them: tokenizers with different signs for a space share few.

    >>> from specdec.testing import toy_tokenizer
    >>> vocabulary = SharedVocabulary(toy_tokenizer(4), toy_tokenizer(2), target_size=4)
    >>> vocabulary.logits(torch.tensor([0.25, 0.5])), vocabulary.to_draft(1), vocabulary.to_draft(3)
    (tensor([0.2500, 0.5000,   -inf,   -inf]), 1, None)
    """

    def __init__(self, target: Any, draft: Any, target_size: int) -> None:
        known = draft.get_vocab()
        pairs = sorted(
            (ours, known[token]) for token, ours in target.get_vocab().items() if token in known and ours < target_size
        )
        if not pairs:
            raise ModelError("the draft model's tokenizer shares no token with the target's: use vocabulary='text'")
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
    """Only text is shared: drafts are decoded with the draft model's tokenizer and encoded with the target's.

    Timor et al. 2025, arXiv 2502.05202, section 3.1 (SLEM). Such drafts have no q.

    >>> from specdec.testing import toy_tokenizer
    >>> TextVocabulary(toy_tokenizer(4), toy_tokenizer(4)).context([1, 2, 3])
    [1, 2, 3]
    """

    def __init__(self, target: Any, draft: Any) -> None:
        self._target, self._draft = target, draft

    def context(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the target's tokens as the draft model's ids."""
        return encode(self._draft, decode(self._target, tokens))

    def to_target(self, tokens: Sequence[int], context: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Return the target's ids of draft tokens after ``tokens``, which are ``context`` in the draft model's ids."""
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
    """Return the ids of a text, without the special tokens that a tokenizer adds around a whole prompt."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the exact text of ids."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def vocabulary_of(kind: str, host: Host, size: int, tokenizer: Any, is_own: bool) -> DraftVocabulary | TextVocabulary:
    """Return the mapping between a draft model's tokens and the target's.

    Args:
        kind: the strategy's option ``vocabulary``.
        size: of the draft model's vocabulary.
        tokenizer: the draft model's; ``is_own`` if it was given with it.

    Raises:
        ModelError: where the option doesn't fit both models.
    """
    is_shared = tokenizer is not None and tokenizer is host.tokenizer
    if not is_shared:
        _check_own(tokenizer, size)
    has_same_ids = is_shared and (is_own or size == host.vocab_size)
    if kind == "same" or has_same_ids:
        _check_same(host, size, tokenizer)
        return SameVocabulary(host.vocab_size, size)
    if host.tokenizer is None or tokenizer is None or is_shared:
        raise ModelError(
            f"vocabulary={kind!r} needs both tokenizers: Generator(model, tokenizer, "
            "proposer=DraftModelProposer(model=…, tokenizer=…))"
        )
    if kind == "text":
        return TextVocabulary(host.tokenizer, tokenizer)
    return SharedVocabulary(host.tokenizer, tokenizer, host.vocab_size)


def _check_own(tokenizer: Any, size: int) -> None:
    """Refuse a tokenizer of another model than the drafter."""
    if tokenizer is not None and len(tokenizer) > size:
        raise ModelError(
            f"the draft model's tokenizer has {plural(len(tokenizer), 'id')}, but the model's vocabulary is {size}: "
            "give the draft model's own tokenizer"
        )


def _check_same(host: Host, size: int, tokenizer: Any) -> None:
    """Raise ModelError if the draft model's ids differ from the target's."""
    are_both_known = tokenizer is not None and host.tokenizer is not None
    if are_both_known and tokenizer is not host.tokenizer and tokenizer.get_vocab() != host.tokenizer.get_vocab():
        raise ModelError(
            "the draft model's tokenizer differs from the target's: vocabulary='shared' drafts their common tokens, "
            "vocabulary='text' encodes drafts again"
        )
    is_padded = are_both_known and len(tokenizer) <= min(size, host.vocab_size)
    if size != host.vocab_size and not is_padded:
        raise ModelError(
            f"the drafter's vocabulary is {size}, the target's {host.vocab_size}: give both tokenizers and "
            "vocabulary='shared' (their common tokens) or 'text' (drafts are decoded and encoded again)"
        )
