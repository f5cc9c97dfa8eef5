"""The noise of a model's own logits between passes of different shapes, by transformers alone, without specdec."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from specdec.models.gradients import runs_in_inference_mode, without_gradients
from specdec.models.own_forward import own_logits
from specdec.models.state import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNKS = (1, 5, 16)  # tokens fed at a time behind a cache


def measure_noise(model: "PreTrainedModel", tokens: Sequence[int], first: int) -> torch.Tensor:
    """The greatest difference of a logit between one pass over all and other ways, (positions from ``first`` on,).

    What was rounded stays in the cache, and a position's own figure may be small by chance: none is below an earlier
    one, nor below the median.
    """
    whole = own_logits(model, [tokens])[0, first:]
    with lock_of(model), without_gradients(runs_in_inference_mode(model)):
        noise = torch.stack([(other - whole).abs().amax(-1) for other in _other_ways(model, tokens, first)]).amax(0)
    return noise.clamp_min(float(noise.median())).cummax(0).values


def _other_ways(model: "PreTrainedModel", tokens: Sequence[int], first: int) -> Iterator[torch.Tensor]:
    from transformers import DynamicCache

    from specdec.models.architecture import cache_argument

    ids, taken_by = torch.tensor([list(tokens)], device=model.device), cache_argument(model)
    yield model(ids.repeat(2, 1), use_cache=False).logits[1, first:].float()
    for size in _CHUNKS:
        cache, logits = DynamicCache(config=model.config), []
        starts = [0, *range(max(1, first), ids.shape[1], size)]
        for start, end in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            output = model(ids[:, start:end], use_cache=True, **{taken_by: cache})
            logits.append(output.logits[0])
        yield torch.cat(logits)[first:].float()
