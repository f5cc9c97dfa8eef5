"""The end of a text: an end-of-text id, a stop string, a stopping criterion, the maximum length or time."""

from collections.abc import Sequence

import torch

from specdec.decoding.detokenizer import TextDecoder
from specdec.errors import failure
from specdec.record import FinishReason
from specdec.settings import Settings


def meets_stop_condition(
    tokens: Sequence[int], eos_token_ids: frozenset[int], settings: Settings, decoder: TextDecoder | None
) -> bool:
    """Return True if the last of ``tokens`` ends the text; called once for each committed token, in order.

    Args:
        tokens: the prompt and the committed tokens.
        decoder: receives the last token, and finds stop strings; None without a need for text.

    Raises:
        PluginError: if the tokenizer or a stopping criterion fails.
    """
    try:
        has_stop_string = decoder is not None and decoder.push(tokens[-1])
    except Exception as error:  # a third party's code
        raise failure("the tokenizer", error) from error
    try:
        meets_criterion = _meets_criterion(tokens, settings)
    except Exception as error:  # a caller's own
        raise failure("a stopping criterion", error) from error
    return tokens[-1] in eos_token_ids or has_stop_string or meets_criterion


def _meets_criterion(tokens: Sequence[int], settings: Settings) -> bool:
    """Return True if any of the caller's criteria ends the text; each runs, since criteria may count calls."""
    if not settings.stopping_criteria:
        return False
    input_ids = torch.tensor([tokens])
    met = [bool(criterion(input_ids, None)) for criterion in settings.stopping_criteria]
    return any(met)


def reached_limit(num_remaining: int, seconds: float, settings: Settings) -> FinishReason | None:
    """Return "length" or "time" if a limit of the settings is reached, else None.

    Args:
        num_remaining: tokens that may still be generated.
        seconds: since the request was made.
    """
    if num_remaining == 0:
        return "length"
    if settings.max_time is not None and seconds > settings.max_time:
        return "time"
    return None
