"""Running a model in its own dtype without gradients, in inference mode if all of its layers support it.

The model's own forward, without a cache and without specdec, is the reference of self-tests and audits.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from specdec.models.modalities import masks_by_types
from specdec.models.notes import lock_of
from specdec.models.weights.layers import is_quantised

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the tensors' own dtypes, even within the caller's ``torch.autocast``."""
    with ExitStack() as disabled:
        for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            disabled.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def without_gradients(is_inference: bool = True) -> Iterator[None]:
    """Disable gradients and autocast around a pass; inference mode makes a step 5 % faster."""
    with torch.inference_mode(is_inference), torch.no_grad(), without_autocast():
        yield


def runs_in_inference_mode(model: "PreTrainedModel") -> bool:
    """Return True if each kind of quantised layer in the model runs in inference mode; runs each of them."""
    quantised = filter(is_quantised, model.modules())
    kinds: dict[object, Any] = {(type(module), type(getattr(module, "weight", None))): module for module in quantised}
    with without_gradients():
        try:
            for module in kinds.values():
                module(torch.ones(1, module.in_features, dtype=model.dtype, device=model.device))
        except Exception:  # a third party's tensors
            return False
    return True


def own_logits(
    model: "PreTrainedModel", texts: Sequence[Sequence[int]], last: int = 0, **inputs: torch.Tensor
) -> torch.Tensor:
    """Return the model's own logits for texts of one length, ``(texts, tokens, vocab)``, float32.

    They are those of one pass without a cache, if a token's depend on the tokens before it alone; otherwise of a pass
    for each token.

    Args:
        last: return logits of this many last tokens; 0 for all tokens.
        inputs: further arguments of the model's forward.
    """
    keeps = {"logits_to_keep": last} if "logits_to_keep" in signature(model.forward).parameters else {}
    given: dict[str, Any] = {"use_cache": False, **keeps, **inputs}
    ids = torch.tensor([list(text) for text in texts], device=model.device)
    with lock_of(model), without_gradients(runs_in_inference_mode(model)):
        logits = _one_by_one(model, ids) if masks_by_types(model) else model(ids, **given).logits
    return logits[:, -last:].float()


def _one_by_one(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    from transformers import DynamicCache

    from specdec.models.architecture import cache_argument

    cache = {cache_argument(model): DynamicCache(config=model.config)}
    return torch.cat([model(token[:, None], use_cache=True, **cache).logits for token in ids.T], 1)
