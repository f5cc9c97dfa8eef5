"""Log-probabilities of tokens in the model's own distribution."""

from collections.abc import Sequence

import torch

from specdec.sampling.topk import topk


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of tokens, and the most likely tokens at their places, most likely first.

    Args:
        logits: at each token's place, ``(tokens, vocab)``.

    Returns:
        The tokens' log-probabilities, ``(tokens,)``, the top ids, ``(tokens, num_top)``, and the log-probabilities of
        these; on the CPU, in float64.
    """
    normalizer = logits.double().logsumexp(-1, keepdim=True)
    own = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])
    if num_top:
        top, ids = topk(logits, num_top)
    else:
        top, ids = own[:, :0], torch.empty(len(tokens), 0, dtype=torch.long)
    return (own - normalizer)[:, 0].cpu(), ids.cpu(), (top - normalizer).cpu()
