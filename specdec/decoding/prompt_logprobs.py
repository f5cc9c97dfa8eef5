"""Log-probabilities of a prompt's tokens, computed while the prompt is read."""

import torch

from specdec.backends.output import OutputRow
from specdec.decoding.request_state import RequestState
from specdec.record import PromptLogprobs
from specdec.sampling.logprobs import token_logprobs

_BLOCK = 64  # tokens: the logits of a whole chunk in float64 would be a copy of hundreds of megabytes


def prompt_logprobs(request: RequestState, start: int, stop: int, output: OutputRow) -> PromptLogprobs | None:
    """Return the log-probabilities of the tokens that follow positions ``start`` to ``stop`` of a prompt.

    Args:
        output: of the nodes at these positions, by their distance from ``start``.

    Returns:
        None if the settings ask for none.
    """
    num_top = request.settings.prompt_logprobs
    if num_top is None:
        return None
    blocks = [
        token_logprobs(
            torch.stack([output.logits(position - start) for position in range(first, min(first + _BLOCK, stop))]),
            request.tokens[first + 1 : min(first + _BLOCK, stop) + 1],
            num_top,
        )
        for first in range(start, stop, _BLOCK)
    ]
    logprobs, top_ids, top_logprobs = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return PromptLogprobs(start + 1, logprobs, top_ids, top_logprobs)
