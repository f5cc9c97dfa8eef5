"""A call in the words of transformers' ``generate``, or of specdec: whoever comes from there needn't relearn them.

What ``generate`` takes and specdec calls otherwise is translated here, once; everything behind it knows one name for
each thing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specdec.decoding.contexts import Context
from specdec.errors import RequestError
from specdec.requests import prompts

_TEMPLATE = "tools", "documents", "chat_template", "enable_thinking"  # and whatever chat_template_kwargs has
_SAMPLING_TOP_K = 50  # transformers' own, where sampling is asked for and nothing said about it
_TRUNCATIONS = "top_k", "top_p", "min_p"
_TOKEN_TYPES = "token_type_ids", "mm_token_type_ids"  # 0 for text
# What tokenizers and processors return for a text; all but ids and mask say nothing that a model computes with.
_ENCODED = (
    "input_ids", "attention_mask", *_TOKEN_TYPES, "special_tokens_mask", "offset_mapping", "length",
    "num_truncated_tokens", "overflowing_tokens", "overflow_to_sample_mapping",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A call: what to write, and how.

    Attributes:
        prompt: one, or a list of them.
        settings: by their names in ``Settings``; ``seed`` may be a list.
        config: a transformers GenerationConfig, which ``settings`` go before.
        each: settings of single prompts, which go before both.
        contexts: that prompts go on from, one for each, or none at all.
        template: options of the chat template.
        streamer: hears of the prompt, each token and the end.
    """

    prompt: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Any | None = None
    each: Sequence[Mapping[str, Any]] | None = None
    contexts: Sequence[Context | None] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    streamer: Any | None = None

    @property
    def is_list(self) -> bool:
        """True if results come as a list."""
        return prompts.as_list(self.prompt)[1]


def asked(
    prompt: Any,
    given: Mapping[str, Any],
    config: Any | None = None,
    each: Sequence[Mapping[str, Any]] | None = None,
    context: Context | Sequence[Context | None] | None = None,
) -> Asked:
    """A call from its arguments.

    Args:
        prompt: what ``Generator.generate`` takes, a tokenizer's output, or None where ``input_ids`` are given.
        given: settings, in specdec's names or transformers'.
        config, each: as in ``Asked``.
        context: one for a single prompt, or one for each.

    Raises:
        RequestError: for arguments that contradict one another.
    """
    settings = dict(given)
    template = _template(settings)
    prompt = _prompt(prompt, settings)
    streamer = settings.pop("streamer", None)
    if streamer is not None and prompts.as_list(prompt)[1]:
        raise RequestError("a streamer hears of one text, and a list was given: use Generator.stream")
    _rename(settings, "stop_strings", "stop")
    _sample(settings)
    prompt = _returned_often(prompt, settings)
    contexts = [context] if isinstance(context, Context) else context or ()
    return Asked(prompt, settings, config, each, contexts, template, streamer)


def _template(settings: dict[str, Any]) -> dict[str, Any]:
    template = {name: settings.pop(name) for name in _TEMPLATE if name in settings}
    more = settings.pop("chat_template_kwargs", None) or {}
    if not isinstance(more, Mapping):
        raise RequestError(f"chat_template_kwargs={more!r}: give a mapping of the template's options")
    return template | dict(more)


def _prompt(prompt: Any, settings: dict[str, Any]) -> Any:
    encoded: dict[str, Any] = {}
    for name in ("input_ids", "attention_mask", *_TOKEN_TYPES):
        if name in settings:
            encoded[name] = settings.pop(name)
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        encoded, prompt = {**encoded, **prompt}, None
    if not encoded:
        if prompt is None:
            raise RequestError("no prompt was given: generate(prompt), or generate(**tokenizer(text))")
        return prompt
    if prompt is not None:
        raise RequestError(f"a prompt and {', '.join(encoded)} were given: give one of them")
    if "input_ids" not in encoded:
        raise RequestError(f"{', '.join(encoded)} were given without input_ids")
    for name, value in encoded.items():
        if value is not None and (name not in _ENCODED or (name in _TOKEN_TYPES and _has_others_than_zero(value))):
            raise RequestError(f"specdec reads text alone, and {name} was given beside input_ids: leave it out")
    return _without_padding(encoded["input_ids"], encoded.get("attention_mask"))


def _without_padding(ids: Any, mask: Any) -> Any:
    """The ids of one prompt, (tokens,), or of each row, (batch, tokens), where the mask is 1."""
    ids, mask = _as_lists(ids), _as_lists(mask)
    if mask is None:
        return ids
    is_batch = bool(ids) and isinstance(ids[0], list)
    rows, masks = (ids, mask) if is_batch else ([ids], [mask])
    if [len(row) for row in rows] != [len(row) if isinstance(row, list) else -1 for row in masks]:
        raise RequestError("attention_mask and input_ids have different shapes")
    kept = [
        [token for token, seen in zip(row, seen, strict=True) if seen] for row, seen in zip(rows, masks, strict=True)
    ]
    return kept if is_batch else kept[0]


def _has_others_than_zero(values: Any) -> bool:
    values = _as_lists(values)
    return any(map(_has_others_than_zero, values)) if isinstance(values, list) else bool(values)


def _as_lists(values: Any) -> Any:
    return values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else values


def _rename(settings: dict[str, Any], name: str, own: str) -> None:
    if settings.get(name) is not None:
        if settings.get(own) is not None:
            raise RequestError(f"{own} and {name} were given, which are the same: give one of them")
        settings[own] = settings[name]
    settings.pop(name, None)


def _sample(settings: dict[str, Any]) -> None:
    """Honour ``do_sample``, beside which transformers' temperature is 1, and top_k 50."""
    samples = settings.pop("do_sample", None)
    if samples is None:
        return
    if not samples:
        for name in _TRUNCATIONS:
            settings.pop(name, None)
        settings["temperature"] = 0.0
    elif settings.get("temperature") == 0:
        raise RequestError("do_sample=True with temperature=0: leave one of them out")
    else:
        settings.setdefault("temperature", 1.0)
        settings.setdefault("top_k", _SAMPLING_TOP_K)


def _returned_often(prompt: Any, settings: dict[str, Any]) -> Any:
    """The prompts, each as often as ``num_return_sequences`` says, with a seed for each."""
    count = settings.pop("num_return_sequences", None)
    if count is None or count == 1:
        return prompt
    if not isinstance(count, int) or count < 1:
        raise RequestError(f"num_return_sequences={count!r}: it must be an integer of at least 1")
    if not settings.get("temperature"):
        raise RequestError(f"num_return_sequences={count}: greedy texts are all the same; set a temperature")
    items = prompts.as_list(prompt)[0]
    seed = settings.get("seed")
    if seed is not None:
        seeds: Sequence[Any] = seed if isinstance(seed, list | tuple) else [seed] * len(items)
        settings["seed"] = [one + number for one in seeds for number in range(count)]
    return [item for item in items for _ in range(count)]
