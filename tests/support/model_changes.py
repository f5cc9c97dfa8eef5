"""Ways in which a model may come to compute something else, each as its owner would do it."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

from tests.support import families


def tiny() -> PreTrainedModel:
    """A Llama whose embeddings aren't tied, so that an input's row and a logit's are two."""
    torch.manual_seed(0)
    return families.make(*families.TREES["llama"])


def _optimizer(**how: bool) -> Callable[[Any], object]:
    def step(model: Any) -> None:
        with torch.enable_grad():
            model(torch.tensor([[3, 4, 5]])).logits.square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.05, **how).step()
        model.zero_grad()

    return step


def _attention(model: Any) -> Any:
    return model.model.layers[0].self_attn


def _loaded(model: Any) -> None:
    torch.manual_seed(1)
    model.load_state_dict(type(model)(model.config).state_dict())


def _hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)


def _forward_replaced(model: Any) -> None:
    layer = model.model.layers[1].mlp
    own = layer.forward
    layer.forward = lambda states: own(states) * 0.5


def _layer_replaced(model: Any) -> None:
    torch.manual_seed(2)
    weight = model.model.layers[0].mlp.up_proj.weight
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)


def _rows_exchanged(model: Any) -> None:
    rows = model.get_input_embeddings().weight.data
    rows[[5, 9]] = rows[[9, 5]]


def _through_a_view(model: Any) -> None:
    with torch.no_grad():
        _attention(model).v_proj.weight.view(-1)[7:90] = 0.25


CHANGES: dict[str, Callable[[Any], object]] = {
    "a layer's weight, in place": lambda model: _attention(model).q_proj.weight.data.mul_(-1.0),
    "one number": lambda model: model.model.layers[1].mlp.down_proj.weight.data[3].add_(2.0),
    "by its memory": lambda model: _attention(model).v_proj.weight.detach().numpy().fill(0.1),
    "through a view": _through_a_view,
    "data replaced": lambda model: setattr(
        _attention(model).v_proj.weight, "data", torch.zeros_like(_attention(model).v_proj.weight)
    ),
    "embeddings exchanged": _rows_exchanged,
    "a norm": lambda model: model.model.norm.weight.data.mul_(torch.linspace(-1, 1, model.config.hidden_size)),
    "loaded": _loaded,
    "a step, one by one": _optimizer(foreach=False),
    "a step, all at once": _optimizer(foreach=True),
    "a step, fused": _optimizer(fused=True),
    "a buffer": lambda model: model.model.rotary_emb.inv_freq.mul_(3.0),
    "a hook": _hook,
    "a forward in place of the class's": _forward_replaced,
    "a layer replaced": _layer_replaced,
    "a layer removed": lambda model: model.model.layers.__delitem__(1),
    "an attribute": lambda model: setattr(_attention(model), "scaling", 2.0),
    "a norm's epsilon": lambda model: setattr(model.model.layers[0].input_layernorm, "variance_epsilon", 0.5),
    "an activation": lambda model: setattr(model.model.layers[0].mlp, "act_fn", torch.nn.Tanh()),
}


def patch_module(patch: Any) -> None:
    """Replace a function of the modelling code, which no module of the model refers to."""
    own = modeling_llama.apply_rotary_pos_emb
    patch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *rest, **more: own(k_like(q), k, *rest, **more))


def k_like(query: torch.Tensor) -> torch.Tensor:
    """Another query."""
    return query.flip(-1)
