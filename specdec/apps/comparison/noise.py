"""The noise of a model's logits between passes of different shapes, measured with transformers alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from specdec.models.gradients import own_logits, runs_in_inference_mode, without_gradients
from specdec.models.notes import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNKS = (1, 5, 16)  # tokens per pass after a cached prefix


def measure_noise(model: "PreTrainedModel", tokens: Sequence[int], first: int) -> torch.Tensor:
    """The maximum deviation of a logit between one pass over all tokens and other passes, by position from ``first``.

    Shape ``(positions,)``. Rounding errors stay in the cache, and one position's deviation may be small at random, so
    no figure is below an earlier one or below the median.
    """
    whole = own_logits(model, [tokens])[0, first:]
    with lock_of(model), without_gradients(runs_in_inference_mode(model)):
        noise = torch.stack([(other - whole).abs().amax(-1) for other in _other_passes(model, tokens, first)]).amax(0)
    return noise.clamp_min(float(noise.median())).cummax(0).values


def _other_passes(model: "PreTrainedModel", tokens: Sequence[int], first: int) -> Iterator[torch.Tensor]:
    from transformers import DynamicCache

    from specdec.models.architecture import cache_argument

    ids, cache_name = torch.tensor([list(tokens)], device=model.device), cache_argument(model)
    yield model(ids.repeat(2, 1), use_cache=False).logits[1, first:].float()
    for size in _CHUNKS:
        cache, logits = DynamicCache(config=model.config), []
        starts = [0, *range(max(1, first), ids.shape[1], size)]
        for start, end in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            output = model(ids[:, start:end], use_cache=True, **{cache_name: cache})
            logits.append(output.logits[0])
        yield torch.cat(logits)[first:].float()
