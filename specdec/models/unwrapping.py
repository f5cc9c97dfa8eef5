"""Unwraps the transformers model inside objects of other libraries: adapters, compilers, data parallelism."""

from typing import Any

import torch

from specdec.errors import ModelError, in_one_line

_PROBE = 5  # tokens on which a wrapper and its model are compared
_OWN_GENERATE = "decode with its own generate()"
# Wrappers whose forward only calls the model in their attribute ``module``.
_FORWARDING = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)


def unwrapped(model: Any) -> Any:
    """Return the transformers model inside a wrapper, with its active adapters.

    Wrappers of ``torch.compile``, data parallelism and PEFT are removed, however they are nested; any other object is
    returned unchanged.

    Raises:
        ModelError: if the wrapper computes something else than the model inside, with the remedy.
    """
    while True:
        if isinstance(model, _FORWARDING):
            model = model.module
        elif isinstance(model, torch.nn.Module) and "_orig_mod" in model._modules:  # torch.compile's
            model = model._orig_mod
        elif _is_peft(model):
            model = _without_peft(model)
        else:
            _refuse_without_memory(model)
            return model


def remedy_for(model: Any) -> str:
    """Return what to give instead of an object that no backend supports, if it contains a model; else ""."""
    if type(model).__name__ == "FullyShardedDataParallel":
        return "its weights are sharded and flattened: save its full state dict, and pass the model loaded from that"
    if isinstance(model, torch.jit.ScriptModule):
        return "a traced model has no cache: pass the model that it was traced from"
    held = {name: each for name, each in _attributes(model).items() if hasattr(each, "get_output_embeddings")}
    if not held:
        return ""
    name, inner = next(iter(held.items()))
    is_pipeline = getattr(model, "tokenizer", None) is not None
    call = f"Generator(it.{name}, it.tokenizer)" if is_pipeline else f"Generator(it.{name})"
    return f"it holds a {type(inner).__name__}: pass that, by {call}"


def _refuse_without_memory(model: Any) -> None:
    """Raise ModelError for a model whose weights are offloaded and loaded by accelerate's hooks in each pass."""
    if isinstance(model, torch.nn.Module) and getattr(getattr(model, "device", None), "type", "") == "meta":
        raise ModelError(
            f"the weights of this {type(model).__name__} are offloaded: load it without a device_map that offloads, or "
            "bring them back with accelerate.hooks.remove_hook_from_submodules(model)"
        )


def _attributes(model: Any) -> dict[str, Any]:
    return {**getattr(model, "__dict__", {}), **(model._modules if isinstance(model, torch.nn.Module) else {})}


def _is_peft(model: Any) -> bool:
    return type(model).__module__.partition(".")[0] == "peft" and hasattr(model, "peft_config")


def _without_peft(model: Any) -> Any:
    """Return the transformers model with PEFT's adapters in its layers.

    Raises:
        ModelError: for adapters outside of the layers, or that depend on the prompt.
    """
    kinds = sorted({type(config).__name__ for config in model.peft_config.values()})
    name = f"{type(model).__name__} with {' and '.join(kinds)}"
    tuner = model.base_model
    for config in model.peft_config.values():
        if getattr(config, "is_prompt_learning", False):
            raise ModelError(f"{name}: its virtual tokens are outside of the transformers model; {_OWN_GENERATE}")
        if getattr(config, "alora_invocation_tokens", None):
            raise ModelError(f"{name}: it is active only after its invocation tokens; {_OWN_GENERATE}")
    inner = tuner.model
    if why := _why_other(model, inner):
        raise ModelError(f"{name}: {why}; {_OWN_GENERATE}")
    return inner


def _why_other(wrapper: torch.nn.Module, inner: torch.nn.Module) -> str:
    """Return how a wrapper differs from the model inside, or ""; not compared in training mode."""
    if wrapper.training:
        return ""
    ids = torch.arange(1, 1 + _PROBE, device=next(inner.parameters()).device)[None]
    try:
        with torch.inference_mode():
            theirs, own = wrapper(input_ids=ids).logits, inner(input_ids=ids).logits
    except Exception as error:  # a library's code
        return f"its forward needs more than tokens ({in_one_line(error)})"
    return "" if torch.equal(theirs, own) else "its logits differ from those of the transformers model inside"
