"""The map from products of final states and a model's output matrix to its logits: a bias, a scale and a soft cap.

Families name these differently in their configurations, and some scale the states instead. So the map is measured: the
model's own ``forward`` is run around given states and an output matrix of few rows, and none of its layers is.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from specdec.errors import ModelError, in_one_line
from specdec.models.token_weights import empty_model, output_bias_of

_SMALL, _LARGE = 1e-5, 1e6
_ROUNDING = 1e-4
_PRODUCTS = _SMALL, 0.5, -3.0, 40.0, _LARGE


@dataclass(frozen=True, slots=True)
class LogitsMap:
    """A model's own map to its logits.

    Attributes:
        scale: of the products.
        softcap: bound of the logits; None for none.
        bias: (vocab,), added before the products are scaled; None for none.
    """

    scale: float = 1.0
    softcap: float | None = None
    bias: torch.Tensor | None = None

    def __call__(self, products: torch.Tensor) -> torch.Tensor:
        """Return logits, (…, vocab), in float32 unless they are the products themselves."""
        if self.scale == 1.0 and self.softcap is None and self.bias is None:
            return products
        logits = products.float()
        if self.bias is not None:
            logits = logits + self.bias.to(logits)
        logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def of_tokens(self, ids: torch.Tensor) -> "LogitsMap":
        """Return the map to the logits of some tokens alone."""
        return self if self.bias is None else replace(self, bias=self.bias[ids.to(self.bias.device)])


def logits_map_of(model: Any) -> LogitsMap:
    """Return a model's map.

    Args:
        model: a transformers model, or an object with its ``config`` and the ``folder`` that it was read from.

    Raises:
        ModelError: the logits aren't such a map of the products.
    """
    measured = measured_map(model if isinstance(model, nn.Module) else empty_model(model.config))
    return replace(measured, bias=output_bias_of(model))


@torch.no_grad()
def measured_map(model: Any) -> LogitsMap:
    """Return a model's map, without a bias; its weights aren't read, so they may be on the meta device.

    Raises:
        ModelError: the logits aren't such a map of the products.
    """
    reason = "its layers aren't in a module of their own"
    inner = (
        getattr(model, "get_decoder", lambda: None)(),
        *(getattr(model, name, None) for name in ("base_model", "model")),
    )
    for decoder in (each for each in inner if each not in (None, model)):
        products = torch.tensor(_PRODUCTS)
        try:
            found = _logits_of(model, decoder, products)
        except Exception as error:  # modelling code
            reason = in_one_line(error)
            continue
        if not found[0]:
            reason = "they don't depend on its output matrix"
            continue
        scale, most = (float(f"{float(each):.7g}") for each in (found[0] / _SMALL, found[-1]))
        measured = LogitsMap(scale, None if abs(most / scale / _LARGE - 1) < _ROUNDING else most)
        if torch.allclose(measured(products), found, rtol=_ROUNDING, atol=1e-6):
            return measured
        reason = f"products of {list(_PRODUCTS)} become {found.tolist()}"
    raise ModelError(
        f"how {type(model).__name__} makes logits of its final states is unknown ({reason}): use another model, or a "
        "head with an output matrix of its own"
    )


class _Output:
    """A decoder's output, with nothing but states."""

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def _logits_of(model: Any, decoder: Any, products: torch.Tensor) -> torch.Tensor:
    """Return the logits that a model makes of products, (n,)."""
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear):
        raise TypeError(f"its output matrix is {type(output).__name__}")
    row = nn.Linear(output.in_features, 1, bias=False, device="cpu", dtype=torch.float32)
    row.weight.copy_(torch.eye(1, output.in_features))
    states = torch.zeros(1, len(products), output.in_features)
    states[0, :, 0] = products
    given = copy(decoder)
    given.forward = lambda *_, **__: _Output(states)
    names = {module: name for name, module in model.named_modules()}
    changed = _with(_with(model, names[output], row), names[decoder], given)
    found = type(model).forward(changed, input_ids=torch.zeros(1, len(products), dtype=torch.long))
    logits: torch.Tensor = found.logits[0, :, 0].float()
    return logits


def _with(module: Any, path: str, new: nn.Module) -> Any:
    """Return a copy of a module with another one at a path; the rest is shared."""
    name, _, rest = path.partition(".")
    other = copy(module)
    other._modules = {**module._modules, name: _with(module._modules[name], rest, new) if rest else new}
    return other
