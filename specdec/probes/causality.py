"""Find out why a model fails the self-test, from its own forward without a cache: is that a decoder's at all?"""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.errors import in_one_line

_TOKENS = tuple(range(3, 11))


def why_no_decoder(model: PreTrainedModel) -> str:
    """Return the reason why no cache and no mask can make the model's forward a decoder's, or "" where it is one."""
    try:
        return _fault(model)
    except Exception as error:  # third-party modelling code
        return f"its forward over tokens alone raised {in_one_line(error)}"


@torch.inference_mode()
def _fault(model: PreTrainedModel) -> str:
    tokens = torch.tensor([_TOKENS], device=model.device) % model.get_output_embeddings().weight.shape[0]
    whole = _logits(model, tokens)
    bound = float(torch.finfo(model.dtype).eps ** 0.5 * whole.std())  # above rounding, far below a wrong mask
    if "position_ids" in inspect.signature(model.forward).parameters:
        counted = torch.arange(len(_TOKENS), device=model.device)[None]
        if _distance(whole, _logits(model, tokens, position_ids=counted)) > bound:
            return "its positions don't count from 0, as specdec does: use another model"
    if _distance(whole[:-1], _logits(model, tokens[:, :-1])) > bound:
        is_encoder = getattr(model.config, "is_decoder", None) is False
        remedy = "load it with is_decoder=True" if is_encoder else "use a causal model"
        return f"it isn't causal, as a later token changes the logits of earlier ones: {remedy}"
    return ""


def _logits(model: PreTrainedModel, tokens: torch.Tensor, **inputs: Any) -> torch.Tensor:
    logits: torch.Tensor = model(tokens, use_cache=False, **inputs).logits
    return logits[0].float()


def _distance(these: torch.Tensor, those: torch.Tensor) -> float:
    return float((these - those).abs().max())
