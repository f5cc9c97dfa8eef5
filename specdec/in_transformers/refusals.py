"""Calls of ``generate`` that can't be honoured, each refused by name: none is answered with another text."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from specdec.backends.architecture import CACHE_ARGUMENTS
from specdec.errors import RequestError
from specdec.in_transformers.rows import PaddedRow

_READ = *CACHE_ARGUMENTS, "attention_mask", "position_ids", "logits_to_keep", "use_cache", "cache_position"
_NOT_GIVEN = "output_attentions", "output_hidden_states"
_LEAVE = "leave custom_generate out for this call"


def check_mode(config: GenerationConfig, assistant_model: Any | None) -> None:
    """Refuse all but greedy search and sampling.

    Raises:
        RequestError: with the way that works.
    """
    if assistant_model is not None:
        raise RequestError("assistant_model: use custom_generate(proposer=DraftModelProposer(model=…)) in its place")
    mode = config.get_generation_mode()
    if mode is GenerationMode.ASSISTED_GENERATION:
        raise RequestError(
            "assisted generation is asked for beside custom_generate, whose strategy is named by "
            "custom_generate(proposer='prompt_lookup'), say: leave the settings of the other out"
        )
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise RequestError(f"custom_generate has no {mode.value.replace('_', ' ')}: {_LEAVE}")
    for name in _NOT_GIVEN:
        if getattr(config, name, None):
            raise RequestError(f"custom_generate gives no {name}: {_LEAVE}")
    if config.cache_implementation == "quantized":
        raise RequestError(f"custom_generate keeps keys and values as they are, not quantized: {_LEAVE}")


def check_inputs(given: Mapping[str, Any]) -> None:
    """Refuse inputs of the model other than ids, their padding and their positions.

    Raises:
        RequestError: naming them.
    """
    for name, value in given.items():
        if name in CACHE_ARGUMENTS and value is not None and value.get_seq_length():
            raise RequestError(
                f"{name} of an earlier call was given, which specdec can't read: give the whole text alone"
            )
        if value is not None and name not in _READ:
            raise RequestError(f"custom_generate doesn't read {name}: {_LEAVE}")


def check_positions(position_ids: torch.Tensor | None, rows: Sequence[PaddedRow]) -> None:
    """Refuse positions that aren't counted from each prompt's first token.

    Raises:
        RequestError: for them.
    """
    if position_ids is None:
        return
    if position_ids.ndim != 2:
        raise RequestError(f"custom_generate doesn't read position_ids of {position_ids.ndim} dimensions: {_LEAVE}")
    for row, given in zip(rows, position_ids.expand(len(rows), -1).tolist(), strict=True):
        if given[len(row.padding) :] != list(range(len(row.prompt))):
            raise RequestError(f"custom_generate counts positions from each prompt's first token: {_LEAVE}")


def check_processors(processors: Sequence[Any]) -> None:
    """Refuse processors that run the model themselves.

    Raises:
        RequestError: naming them.
    """
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise RequestError(f"guidance_scale runs the model besides ({type(processor).__name__}): {_LEAVE}")
