"""Finds out whether a model that fails the self-test is causal at all, by its own forward without a cache."""

import inspect

import torch
from transformers import PreTrainedModel

from specdec.errors import in_one_line
from specdec.models.own_forward import own_logits

_TOKENS = tuple(range(3, 11))


def why_no_decoder(model: PreTrainedModel) -> str:
    """Return why the model's forward isn't that of a causal decoder, or ""."""
    try:
        return _fault(model)
    except Exception as error:  # third-party modelling code
        return f"its forward raised {in_one_line(error)} for token ids without other inputs"


def _fault(model: PreTrainedModel) -> str:
    tokens = [token % model.get_output_embeddings().weight.shape[0] for token in _TOKENS]
    whole = own_logits(model, [tokens])[0]
    bound = float(torch.finfo(model.dtype).eps ** 0.5 * whole.std())  # above rounding, far below a wrong mask
    if "position_ids" in inspect.signature(model.forward).parameters:
        counted = torch.arange(len(_TOKENS), device=model.device)[None]
        if _distance(whole, own_logits(model, [tokens], position_ids=counted)[0]) > bound:
            return "its positions don't start at 0, as specdec's do: use another model"
    if _distance(whole[:-1], own_logits(model, [tokens[:-1]])[0]) > bound:
        is_encoder = getattr(model.config, "is_decoder", None) is False
        remedy = "load it with is_decoder=True" if is_encoder else "use a causal model"
        return f"it isn't causal: a later token changes the logits of earlier ones; {remedy}"
    return ""


def _distance(these: torch.Tensor, those: torch.Tensor) -> float:
    return float((these - those).abs().max())
