"""Models whose hidden states differ from those of the checkpoint that they were loaded from."""

import torch


def alterations_of(model: object) -> list[str]:
    """Return what changes a model's hidden states: an adapter in its layers, quantised weights, or neither."""
    found = ["an adapter"] if _has_adapter(model) else []
    config = getattr(model, "config", None)
    is_quantized = getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None
    return [*found, "quantised weights"] if is_quantized else found


def _has_adapter(model: object) -> bool:
    """Return True for layers of PEFT's, which are in the model itself, however its adapter was added."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(type(module).__module__.startswith("peft.") for module in modules)
