"""Opens a model: checks a generator's arguments, and makes its binding."""

import os
import warnings
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from specdec.errors import RequestError, refuse_unknown
from specdec.inputs.processor import split
from specdec.models.encoder_decoders import decoder_of
from specdec.models.loading import ModelSource, refuse_for_loaded
from specdec.models.unwrapping import unwrapped
from specdec.models.weights.modes import checked_weights
from specdec.numerics import Mode, checked_mode
from specdec.plugins.registry import Registry
from specdec.runtime.backend_choice import LoadedModel, backends_for, read_models, why_torch
from specdec.runtime.binding import Binding, GeneratorChoice
from specdec.runtime.strategies import check_files
from specdec.settings import OF_GENERATOR, Settings
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier

_MAX_NAMED = 64  # proposers made from text that stay the same object
_LOAD_IT = "load the model yourself with AutoModelForCausalLM.from_pretrained, and pass the object"
# Arguments of other libraries, each with its name here or a remedy.
_ELSEWHERE = {
    "torch_dtype": "dtype",
    "device_map": "device",
    "strategy": "proposer",
    "speculative_config": "proposer",
    "assistant_model": "give proposer=DraftModelProposer(model=…)",
    "draft_model": "give proposer=DraftModelProposer(model=…)",
    "engine": "backend",
    "max_num_seqs": "max_batch_size",
    "gguf_file": "give the file's path as the model",
    **dict.fromkeys(
        ("trust_remote_code", "quantization_config", "load_in_8bit", "load_in_4bit", "revision", "attn_implementation"),
        _LOAD_IT,
    ),
    **dict.fromkeys(
        (*Settings.model_fields, "do_sample", "stop_strings"),
        "it is a setting of generate: generator.generate(prompt, …)",
    ),
}


def check_arguments(
    unknown: Mapping[str, Any], max_batch_size: object, max_cache_bytes: object, background_work: object
) -> None:
    """Raise RequestError for arguments that a generator doesn't have, limits below 1, or a flag that is no bool."""
    refuse_unknown("Generator", unknown, ("tokenizer", "proposer", *OF_GENERATOR), _ELSEWHERE)
    limits = {"max_batch_size": max_batch_size, "max_cache_bytes": 1 if max_cache_bytes is None else max_cache_bytes}
    for name, limit in limits.items():
        if not isinstance(limit, int) or limit < 1:
            raise RequestError(f"{name}={limit!r}: it must be an integer of at least 1")
    if not isinstance(background_work, bool):
        raise RequestError(f"background_work={background_work!r}: give True or False")


def choice_of(
    registry: Registry,
    proposer: Proposer | str,
    verifier: Verifier | str,
    numerics: Mode,
    weights: str,
    mask: Any,
    backend: str,
) -> GeneratorChoice:
    """Return a generator's options with plug-ins in place of their names.

    Raises:
        PluginError: for an unknown or misconfigured plug-in.
        RequestError: for options that don't exist, or contradict one another.
    """
    named = lru_cache(_MAX_NAMED)(partial(registry.make, "proposers"))

    def resolve(proposer: Proposer | str) -> Proposer:
        made: Proposer = named(proposer) if isinstance(proposer, str) else registry.make("proposers", proposer)
        return made

    compiler = None if mask is None else registry.make("masks", mask)
    return GeneratorChoice(
        proposer=resolve(proposer),
        verifier=registry.make("verifiers", verifier),
        numerics=checked_mode(numerics, compiler),
        compiler=compiler,
        backend=backend,
        weights=checked_weights(weights, registry.kernels()),
        resolve=resolve,
    )


def open_model(
    registry: Registry,
    choice: GeneratorChoice,
    model: Any,
    tokenizer: Any | None,
    device: Any = None,
    dtype: Any = None,
) -> Binding:
    """Bind a model object, or a model given by name, with a backend that is preferred to torch if one can drive it.

    Raises:
        ModelError: if the model or tokenizer isn't supported, with the reason.
        PluginError: for an unknown backend, or a proposer that fails.
        RequestError: for a device or dtype that is unavailable.

    Warns:
        UserWarning: if torch decodes because a preferred backend failed.
    """
    if choice.backend != "auto":
        backends_for(registry, choice.backend, model)  # refuses an unknown name before seconds of loading
    if not isinstance(model, str | os.PathLike):
        refuse_for_loaded(model, device, dtype)
        inner, processor = split(tokenizer)
        return Binding([LoadedModel(decoder_of(unwrapped(model)), inner, processor=processor)], choice, registry)
    source = ModelSource.of(os.fspath(model), device, dtype)
    check_files([choice.proposer])
    why = why_torch(choice.weights, choice.compiler, [choice.proposer])
    binding = Binding(read_models(registry, choice.backend, source, tokenizer, why), choice, registry)
    if binding.loaded.is_fallback:
        warnings.warn(binding.loaded.note, stacklevel=3)
    return binding
