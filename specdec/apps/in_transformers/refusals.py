"""Checks that refuse unsupported calls of ``generate``, each with the argument's name."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from transformers import GenerationConfig
from transformers.generation import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from specdec.errors import RequestError
from specdec.inputs.encoded import ENCODER_OUTPUT, IDS_MASK, IDS_POSITIONS
from specdec.inputs.own_continuation import ENCODED
from specdec.models.architecture import CACHE_ARGUMENTS
from specdec.models.modalities import modalities_of

_READ = *CACHE_ARGUMENTS, "attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache_position"
_NOT_GIVEN = "output_attentions", "output_hidden_states"
_LEAVE = "leave custom_generate out for this call"
# Settings of transformers' assisted generation, which specdec's strategies replace.
_ASSISTED = (
    "use_mtp", "speculation_type", "prompt_lookup_num_tokens", "assistant_early_exit", "assistant_ensemble_weight",
    "is_assistant",
)  # fmt: skip
_INSTEAD = {
    "use_mtp": "custom_generate(proposer='mtp')",
    "speculation_type": "custom_generate(proposer='dflash:head=FOLDER')",
    "prompt_lookup_num_tokens": "custom_generate(proposer='prompt_lookup')",
    "assistant_early_exit": "custom_generate(proposer='draft_model:layers=2')",
}


def check_mode(config: GenerationConfig, assistant_model: Any | None) -> None:
    """Refuse all modes except greedy search and sampling.

    Raises:
        RequestError: with the remedy.
    """
    if assistant_model is not None:
        raise RequestError("assistant_model: use custom_generate(proposer=DraftModelProposer(model=…)) instead")
    for name in _ASSISTED:
        if getattr(config, name, None):
            raise RequestError(
                f"{name}={getattr(config, name)!r} asks for transformers' assisted generation: leave it out, also of "
                f"model.generation_config, and name a strategy by {_INSTEAD.get(name, 'custom_generate(proposer=…)')}"
            )
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise RequestError(f"custom_generate has no {mode.value.replace('_', ' ')}: {_LEAVE}")
    for name in _NOT_GIVEN:
        if getattr(config, name, None):
            raise RequestError(f"custom_generate doesn't return {name}: {_LEAVE}")


def check_inputs(inputs: Mapping[str, Any], model: Any) -> None:
    """Refuse inputs of the model that specdec doesn't read; those of images and audio are a multimodal model's.

    Raises:
        RequestError: with the names of the inputs.
    """
    own: Collection[str] = inspect.signature(model.forward).parameters if modalities_of(model) else ()
    if model.config.is_encoder_decoder:
        own = ENCODER_OUTPUT, IDS_MASK, IDS_POSITIONS
    for name, value in ((name, value) for name, value in inputs.items() if value is not None):
        if name in CACHE_ARGUMENTS and _is_quantized(value):  # also that of cache_implementation="quantized"
            raise RequestError(f"custom_generate doesn't quantize keys and values: {_LEAVE}")
        if name in CACHE_ARGUMENTS and _is_filled(value):
            raise RequestError(
                f"{name} of an earlier call was given, which specdec can't read: give the whole text instead"
            )
        if name in own and name == "inputs_embeds":
            raise RequestError(f"custom_generate doesn't read vectors in the place of ids ({name}): {_LEAVE}")
        if name not in (*_READ, ENCODED, *own):
            raise RequestError(f"custom_generate doesn't read {name}: {_LEAVE}")


def check_processors(processors: Sequence[Any]) -> None:
    """Refuse processors that run the model themselves.

    Raises:
        RequestError: with the processors' names.
    """
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise RequestError(f"guidance_scale runs the model itself ({type(processor).__name__}): {_LEAVE}")


def _is_quantized(cache: Any) -> bool:
    kinds = chain.from_iterable(type(layer).__mro__ for layer in getattr(cache, "layers", ()))
    return any("Quantized" in kind.__name__ for kind in kinds)


def _is_filled(cache: Any) -> bool:
    """Return True if a cache has read tokens; one without attention layers doesn't know how many."""
    is_linear = getattr(cache, "is_linear", [])
    return bool(cache.has_previous_state() if is_linear and all(is_linear) else cache.get_seq_length())
