"""Checks that refuse unsupported calls of ``generate``, each with the argument's name."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from specdec.apps.in_transformers.rows import PaddedRow
from specdec.errors import RequestError
from specdec.models.architecture import CACHE_ARGUMENTS

_READ = *CACHE_ARGUMENTS, "attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache_position"
_NOT_GIVEN = "output_attentions", "output_hidden_states"
_LEAVE = "leave custom_generate out for this call"
# Settings of transformers' assisted generation, which specdec's strategies replace.
_ASSISTED = (
    "use_mtp", "speculation_type", "prompt_lookup_num_tokens", "assistant_early_exit", "assistant_ensemble_weight",
    "is_assistant",
)  # fmt: skip
_INSTEAD = {
    "use_mtp": "custom_generate(proposer='auto')",
    "speculation_type": "custom_generate(proposer=DraftModelProposer(model=…))",
    "prompt_lookup_num_tokens": "custom_generate(proposer='prompt_lookup')",
    "assistant_early_exit": "custom_generate(proposer='draft_model:layers=2')",
}
_MODALITIES = "mm_encoder_outputs"  # by modality, added by generate for every vision-language model
_TOKEN_TYPES = "mm_token_type_ids", "token_type_ids"  # of a vision-language model: 0 for text


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


def check_inputs(inputs: Mapping[str, Any], reads_images: bool) -> None:
    """Refuse inputs of the model other than ids, their padding and their positions.

    Inputs that only mark the prompt as text are accepted: processors and ``generate`` itself add them to every call of
    a vision-language model.

    Args:
        reads_images: True for a vision-language model; in other models token types have another meaning.

    Raises:
        RequestError: with the names of the inputs.
    """
    given = [name for name, output in (inputs.get(_MODALITIES) or {}).items() if output is not None]
    if given:
        raise RequestError(f"custom_generate supports text only, but {' and '.join(given)} input was given: {_LEAVE}")
    for name, value in ((name, value) for name, value in inputs.items() if value is not None):
        if name in CACHE_ARGUMENTS and _is_quantized(value):  # also that of cache_implementation="quantized"
            raise RequestError(f"custom_generate doesn't quantize keys and values: {_LEAVE}")
        if name in CACHE_ARGUMENTS and _is_filled(value):
            raise RequestError(
                f"{name} of an earlier call was given, which specdec can't read: give the whole text instead"
            )
        is_text = reads_images and name in _TOKEN_TYPES and not torch.as_tensor(value).any()
        if name not in (*_READ, _MODALITIES) and not is_text:
            raise RequestError(f"custom_generate doesn't read {name}: {_LEAVE}")


def check_positions(position_ids: torch.Tensor | None, rows: Sequence[PaddedRow]) -> None:
    """Refuse positions that aren't counted from each prompt's first token.

    Raises:
        RequestError: with the remedy.
    """
    if position_ids is None:
        return
    # (batch, tokens), or (axes, batch, tokens) for models with rows and columns of images, which text doesn't use.
    for axis in position_ids if position_ids.ndim == 3 else [position_ids]:
        for row, positions in zip(rows, axis.expand(len(rows), -1).tolist(), strict=True):
            if positions[len(row.padding) :] != list(range(len(row.prompt))):
                raise RequestError(
                    f"custom_generate supports only positions counted from each prompt's first token: {_LEAVE}"
                )


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
