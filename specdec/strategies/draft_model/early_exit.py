"""Early exit: a draft model of the target's first layers, which shares its weights."""

import copy

import torch
from transformers import PreTrainedModel

from specdec.errors import ModelError, plural
from specdec.models.notes import share_lock


def first_layers(model: object, num_layers: int) -> PreTrainedModel:
    """Return a model of another's first layers, final norm and head; no weight is copied.

    Early exit without training: Zhang et al. 2023, "Draft & Verify", arXiv 2309.08168. With training: LayerSkip,
    Elhoushi et al. 2024, arXiv 2404.16710.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=3)
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
    >>> shallow = first_layers(model, 1)
    >>> len(model.model.layers), len(shallow.model.layers), shallow.lm_head is model.lm_head
    (3, 1, True)

    Raises:
        ModelError: if it isn't a transformers model, or has no single list of more than ``num_layers`` layers.
    """
    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"layers={num_layers}: early exit needs a transformers model that runs on torch, not a "
            f"{type(model).__name__}: make the generator with backend='hf'"
        )
    depth = model.config.get_text_config().num_hidden_layers
    if not 1 <= num_layers < depth:
        raise ModelError(f"layers={num_layers}: the model has {plural(depth, 'layer')}, so give 1 to {depth - 1}")
    paths = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth
    ]
    if len(paths) != 1:
        raise ModelError(
            f"layers={num_layers}: {type(model).__name__} has {plural(len(paths), 'list')} of layers, not one"
        )
    shallow = _copy(model)
    share_lock(model, shallow)
    config = copy.deepcopy(model.config)
    text_config = config.get_text_config()
    text_config.num_hidden_layers = num_layers
    if vars(text_config).get("layer_types"):  # others derive it from the number of layers
        text_config.layer_types = text_config.layer_types[:num_layers]
    own_configs = {id(model.config): config, id(model.config.get_text_config()): text_config}
    shallow.config = config
    holder: torch.nn.Module = shallow
    *parents, last = paths[0].split(".")
    for name in parents:
        inner = _copy(getattr(holder, name))
        if id(getattr(inner, "config", None)) in own_configs:
            inner.config = own_configs[id(inner.config)]
        holder._modules[name] = inner
        holder = inner
    holder._modules[last] = torch.nn.ModuleList(list(getattr(holder, last))[:num_layers]).train(model.training)
    return shallow


def _copy(module: torch.nn.Module) -> torch.nn.Module:
    """Return another object with the same submodules and parameters."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
