"""A request as the caller writes it, with specdec's names or those of transformers' ``generate``.

transformers' names are translated here; all later code uses specdec's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from specdec.decoding.context import Context
from specdec.errors import RequestError
from specdec.inputs.processor import ProcessorOutput
from specdec.requests import prompts
from specdec.requests.options import RequestOptions
from specdec.requests.references import as_references
from specdec.sampling.randomness import seed_of_sample

_TEMPLATE = "tools", "documents", "chat_template", "enable_thinking"  # and those in chat_template_kwargs
_SAMPLING_TOP_K = 50  # transformers' default when sampling
_TRUNCATIONS = "top_k", "top_p", "min_p"
_TOKEN_TYPES = "token_type_ids", "mm_token_type_ids"  # 0 for text
_OF_ENCODERS = "input_ids", "attention_mask", *_TOKEN_TYPES
# A tokenizer's or processor's output for text; models use the ids and the mask only.
_ENCODED = (
    "input_ids", "attention_mask", *_TOKEN_TYPES, "special_tokens_mask", "offset_mapping", "length",
    "num_truncated_tokens", "overflowing_tokens", "overflow_to_sample_mapping",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompts and settings, translated but not yet checked against a model.

    Attributes:
        prompt: one prompt, or a list of prompts.
        settings: by their names in ``Settings``; ``seed`` may be a list.
        config: a transformers GenerationConfig; ``settings`` take precedence.
        each: settings of single prompts, which take precedence over both.
        contexts: one for each prompt, or none.
        references: one for all prompts, one for each, or none; each is text, ids or None.
        template: options of the chat template.
        streamer: receives the prompt, each token and the end.
    """

    prompt: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Any | None = None
    each: Sequence[Mapping[str, Any]] | None = None
    contexts: Sequence[Context | None] = ()
    references: Sequence[Any] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    streamer: Any | None = None

    @classmethod
    def of(
        cls,
        prompt: Any,
        *,
        generation_config: Any | None = None,
        each: Sequence[Mapping[str, Any]] | None = None,
        context: Context | Sequence[Context | None] | None = None,
        reference: Any = None,
        **settings: Any,
    ) -> Self:
        """Translate the arguments of ``Generator.generate``.

        Args:
            prompt: a prompt, prompts or a tokenizer's output; None if ``input_ids`` are given.

        Raises:
            RequestError: for arguments that contradict one another.
        """
        template = _template(settings)
        prompt = _prompt(prompt, settings)
        streamer = settings.pop("streamer", None)
        if streamer is not None and prompts.as_list(prompt)[1]:
            raise RequestError("a streamer receives one text, but a list was given: use Generator.stream")
        _rename(settings, "stop_strings", "stop")
        _sample(settings)
        references = as_references(reference)
        prompt, references = _repeated(prompt, references, settings)
        contexts = [context] if isinstance(context, Context) else context or ()
        return cls(prompt, settings, generation_config, each, contexts, references, template, streamer)

    @property
    def is_list(self) -> bool:
        """True if results are returned as a list."""
        return prompts.as_list(self.prompt)[1]


def _template(settings: dict[str, Any]) -> dict[str, Any]:
    template = {name: settings.pop(name) for name in _TEMPLATE if name in settings}
    more = settings.pop("chat_template_kwargs", None) or {}
    if not isinstance(more, Mapping):
        raise RequestError(f"chat_template_kwargs={more!r}: give a mapping of the template's options")
    return template | dict(more)


def _prompt(prompt: Any, settings: dict[str, Any]) -> Any:
    encoded = {name: settings.pop(name) for name in [*settings] if name in _OF_ENCODERS or _is_input(name, settings)}
    if isinstance(prompt, Mapping) and "role" not in prompt:
        encoded, prompt = {**encoded, **prompt}, None
    if not encoded:
        if prompt is None:
            raise RequestError("no prompt was given: generate(prompt), or generate(**tokenizer(text))")
        return prompt
    if prompt is not None:
        raise RequestError(f"both a prompt and {', '.join(encoded)} were given: give only one")
    if any(_is_more_than_text(name, value) for name, value in encoded.items()):
        return ProcessorOutput.of(encoded).prompts()
    if "input_ids" not in encoded:
        raise RequestError(f"{', '.join(encoded)} were given without input_ids")
    return _without_padding(encoded["input_ids"], encoded.get("attention_mask"))


def _is_input(name: str, settings: Mapping[str, Any]) -> bool:
    """Return True for a processor's output, such as pixel_values: numbers by a name that no setting has."""
    return name not in RequestOptions.__annotations__ and isinstance(settings[name], torch.Tensor | np.ndarray)


def _is_more_than_text(name: str, value: Any) -> bool:
    return value is not None and (name not in _ENCODED or (name in _TOKEN_TYPES and _has_others_than_zero(value)))


def _without_padding(ids: Any, mask: Any) -> Any:
    """Return the ids of one prompt, (tokens,), or of each row, (batch, tokens), where the mask is 1."""
    ids, mask = _as_lists(ids), _as_lists(mask)
    if mask is None:
        return ids
    is_batch = bool(ids) and isinstance(ids[0], list)
    rows, masks = (ids, mask) if is_batch else ([ids], [mask])
    if [len(row) for row in rows] != [len(row) if isinstance(row, list) else -1 for row in masks]:
        raise RequestError("attention_mask and input_ids have different shapes")
    unpadded = [
        [token for token, is_real in zip(row, mask, strict=True) if is_real]
        for row, mask in zip(rows, masks, strict=True)
    ]
    return unpadded if is_batch else unpadded[0]


def _has_others_than_zero(values: Any) -> bool:
    values = _as_lists(values)
    return any(map(_has_others_than_zero, values)) if isinstance(values, list) else bool(values)


def _as_lists(values: Any) -> Any:
    return values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else values


def _rename(settings: dict[str, Any], name: str, own: str) -> None:
    if name in settings:
        value = settings.pop(name)
        if value is not None and settings.get(own) is not None:
            raise RequestError(f"{own} and {name} are the same setting: give only one")
        settings[own] = settings.get(own) if value is None else value


def _sample(settings: dict[str, Any]) -> None:
    """Apply ``do_sample``, with transformers' defaults: temperature 1 and top_k 50."""
    if "do_sample" not in settings:
        return
    samples = settings.pop("do_sample")
    if samples is None and settings.get("temperature") is not None:
        return  # the temperature decides
    if not samples:
        for name in _TRUNCATIONS:
            settings.pop(name, None)
        settings["temperature"] = 0.0
    elif settings.get("temperature") == 0:
        raise RequestError("do_sample=True with temperature=0: leave one of them out")
    else:
        settings["temperature"] = 1.0 if settings.get("temperature") is None else settings["temperature"]
        settings.setdefault("top_k", _SAMPLING_TOP_K)


def _seed_of_sample(seed: Any, number: int) -> Any:
    """Return a sample's seed; a value that ``Settings`` refuses stays as it is."""
    return seed_of_sample(seed, number) if isinstance(seed, int) and 0 <= seed < 2**63 else seed


def _repeated(prompt: Any, references: Sequence[Any], settings: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Return each prompt and its reference ``num_return_sequences`` times, with a seed for each."""
    count = settings.pop("num_return_sequences", None)
    if count is None or count == 1:
        return prompt, references
    if not isinstance(count, int) or count < 1:
        raise RequestError(f"num_return_sequences={count!r}: it must be an integer of at least 1")
    if not settings.get("temperature"):
        raise RequestError(f"num_return_sequences={count}: greedy texts are all the same; set a temperature")
    items = prompts.as_list(prompt)[0]
    seed = settings.get("seed")
    if seed is not None:
        seeds: Sequence[Any] = seed if isinstance(seed, list | tuple) else [seed] * len(items)
        settings["seed"] = [_seed_of_sample(one, number) for one in seeds for number in range(count)]
    if len(references) > 1:
        references = [reference for reference in references for _ in range(count)]
    return [item for item in items for _ in range(count)], references
