"""The model's own forward without a cache and without specdec: the reference of self-tests and audits."""

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from specdec.models.gradients import runs_in_inference_mode, without_gradients
from specdec.models.notes import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def own_logits(
    model: "PreTrainedModel", texts: Sequence[Sequence[int]], last: int = 0, **inputs: torch.Tensor
) -> torch.Tensor:
    """Return the model's own logits for texts of one length, ``(texts, tokens, vocab)``, float32.

    Args:
        last: return logits of this many last tokens; 0 for all tokens.
        inputs: further arguments of the model's forward.
    """
    keeps = {"logits_to_keep": last} if "logits_to_keep" in signature(model.forward).parameters else {}
    given: dict[str, Any] = {"use_cache": False, **keeps, **inputs}
    with lock_of(model), without_gradients(runs_in_inference_mode(model)):
        logits: torch.Tensor = model(torch.tensor([list(text) for text in texts], device=model.device), **given).logits
    return logits[:, -last:].float()
