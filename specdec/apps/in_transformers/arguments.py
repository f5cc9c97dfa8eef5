"""Translates the processors and criteria prepared by ``generate`` to specdec's settings."""

from collections.abc import Sequence
from typing import Any

from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from specdec.apps.in_transformers.rows import BatchProcessor, PaddedRow
from specdec.errors import RequestError
from specdec.requests.own_copies import check_copyable
from specdec.sampling.processors import is_path_pure

_WARPERS = hf.TemperatureLogitsWarper, hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.MinPLogitsWarper  # in their order
_TELL_ROWS_APART = (
    hf.PrefixConstrainedLogitsProcessor, hf.RepetitionPenaltyLogitsProcessor,
    hf.EncoderRepetitionPenaltyLogitsProcessor, hf.EncoderNoRepeatNGramLogitsProcessor,
)  # fmt: skip
_NAMES = "temperature", "top_k", "top_p", "min_p"


def sampling_settings(processors: Sequence[Any], row: PaddedRow, num_rows: int, samples: bool) -> dict[str, Any]:
    """Return processors as a row's settings: final temperature and truncation by name, all others unchanged."""
    named: dict[str, Any] = {"temperature": 1.0 if samples else 0.0}
    others = list(processors)
    last = len(_WARPERS)
    while samples and others and (place := _place(others[-1])) is not None and place < last:
        last, warper = place, others.pop()
        named[_NAMES[place]] = getattr(warper, _NAMES[place])
    return {**named, "logits_processor": tuple(_in_batch(one, row, num_rows) for one in others)}


def stopping_settings(criteria: Sequence[Any], row: PaddedRow, most: int, vocab_size: int) -> dict[str, Any]:
    """Return criteria as a row's settings: length and ends of text by name, all others unchanged.

    Ends of text outside the vocabulary are left out, since ``generate`` accepts them.

    Args:
        most: tokens of the text, the prompt and its padding included.
    """
    ends, others = list[int](), []
    for criterion in criteria:
        if isinstance(criterion, EosTokenCriteria):
            ends += (token for token in criterion.eos_token_id.flatten().tolist() if 0 <= token < vocab_size)
        elif isinstance(criterion, MaxLengthCriteria):
            most = min(most, criterion.max_length)
        else:
            others.append(_in_batch(criterion, row, 1))
    length = len(row.padding) + len(row.prompt)
    return {"max_new_tokens": most - length, "eos_token_id": tuple(ends), "stopping_criteria": tuple(others)}


def check_functions(functions: Sequence[Any], num_rows: int) -> None:
    """Refuse processors and criteria that may have state and that rows of a batch would share.

    Raises:
        RequestError: with the remedy.
    """
    if num_rows > 1:
        check_copyable(one for one in functions if not is_path_pure(one))


def check_criteria(criteria: Sequence[Any], num_rows: int) -> None:
    """Raise an error for criteria in a batch without an end-of-text token, which would pad rows that end early.

    Raises:
        RequestError: with the remedy.
    """
    kinds = [type(criterion) for criterion in criteria]
    others = [kind.__name__ for kind in kinds if kind not in (EosTokenCriteria, MaxLengthCriteria)]
    if num_rows > 1 and others and EosTokenCriteria not in kinds:
        raise RequestError(f"{', '.join(others)} can't end rows of a batch without an eos_token_id: give one")


def _place(processor: Any) -> int | None:
    """Return a warper's index among those with a setting of their own; None for others, or with other options."""
    if type(processor) not in _WARPERS or getattr(processor, "filter_value", -float("inf")) != -float("inf"):
        return None
    return _WARPERS.index(type(processor)) if getattr(processor, "min_tokens_to_keep", 1) == 1 else None


def _in_batch(function: Any, row: PaddedRow, num_rows: int) -> Any:
    num_told_apart = num_rows if isinstance(function, _TELL_ROWS_APART) else 1
    if not len(row.padding) and num_told_apart == 1:
        return function
    return BatchProcessor(function, row, num_told_apart, is_path_pure(function))
