"""Prompts with inputs, as a model's own ``generate`` prepares them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch

from specdec.errors import RequestError, plural
from specdec.inputs.base import PromptInputs
from specdec.inputs.blocks import blocks_of
from specdec.inputs.encoded import ENCODER_OUTPUT, encoded_rows, mask_of_ids
from specdec.inputs.features import Features
from specdec.inputs.own_continuation import ENCODED, PreparedCall
from specdec.inputs.placeholders import PlaceholderInputs
from specdec.models.encoder_decoders import decoder_of
from specdec.models.modalities import TOKEN_TYPES, modalities_of

_READ_APART = {"cross_attention_mask"}
_MARKERS = "visual_indicator_token_ids"
_READ_BY_LAYERS = ("moe_mm_token_type_ids",)
_NOT_RAW = {ENCODED, "attention_mask", "position_ids", "input_ids", *TOKEN_TYPES, *_READ_BY_LAYERS}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrompt:
    """A prompt's ids with what else the model reads; a prompt for ``Generator.generate`` like any other.

    Attributes:
        call: of ``generate``, which prepared the prompt as its ``row``; None if the prompt wasn't prepared so.
        source: the encoder's ids, in the decoder's vocabulary, which the answer may resemble; empty if there are none.
    """

    ids: Sequence[int]
    inputs: PromptInputs | None = None
    call: PreparedCall | None = None
    row: int = 0
    source: Sequence[int] = ()


def prepared_prompts(model: Any, input_ids: torch.Tensor, given: Mapping[str, Any]) -> list[PreparedPrompt]:
    """Return the rows of a call of ``generate`` as prompts.

    Args:
        input_ids: (rows, tokens), padded on the left.
        given: the arguments of the model's first pass, as ``generate`` prepares them.

    Raises:
        RequestError: as ``paddings_of``; for inputs that don't fit the placeholders, or that can't be divided among the
            rows.
    """
    paddings = paddings_of(input_ids, given)
    texts = [ids[num:].tolist() for ids, num in zip(input_ids, paddings, strict=True)]
    call, inputs = PreparedCall(model, input_ids, given), list[PromptInputs | None]()
    if given.get(ENCODER_OUTPUT) is not None:
        inputs += encoded_rows(decoder_of(model), texts, paddings, given)
    else:
        inputs += _inputs_of(model, texts, paddings, given)
    rows = enumerate(zip(texts, inputs, strict=True))
    return [PreparedPrompt(text, each, None if each is None else call, row) for row, (text, each) in rows]


def paddings_of(input_ids: torch.Tensor, given: Mapping[str, Any]) -> list[int]:
    """Return the number of padding tokens of each row, (rows, tokens), by the mask among the model's arguments.

    Raises:
        RequestError: for a mask of another shape, and for a row that is padded elsewhere than on the left, or has only
            padding.
    """
    mask = mask_of_ids(given)
    if mask is None:
        return [0] * len(input_ids)
    if mask.shape != input_ids.shape:
        raise RequestError(f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(input_ids.shape)}")
    paddings: list[int] = (mask == 0).sum(-1).tolist()
    for number, (row, num_padding) in enumerate(zip(mask, paddings, strict=True)):
        if row[:num_padding].any():
            raise RequestError(f"row {number} is padded elsewhere than on its left: tokenize with padding_side='left'")
        if num_padding == len(row):
            raise RequestError(f"row {number} has only padding")
    return paddings


def placeholder_ids(model: Any) -> dict[str, int]:
    """Return by modality the id of a model's placeholders; {} for a model of text."""
    known = {}
    for modality in modalities_of(model):
        for name in (f"{modality}_token_id", f"{modality}_token_index"):
            token = getattr(model.config, name, None)
            if isinstance(token, int):
                known[modality] = token
    return known


def _inputs_of(
    model: Any, texts: Sequence[Sequence[int]], paddings: Sequence[int], given: Mapping[str, Any]
) -> list[PromptInputs | None]:
    """Return the inputs of each row, None for rows of text alone."""
    token_ids = placeholder_ids(model)
    encoded = {name: Features.of(output) for name, output in (given.get(ENCODED) or {}).items() if output is not None}
    if (
        "video" in encoded
        and "image" in token_ids.keys() - encoded
        and not any(token_ids.get("video") in text for text in texts)
    ):
        token_ids["video"] = token_ids["image"]  # GLM-4V's frames have an image's placeholders
    features = _by_row(encoded, texts, token_ids)
    unencoded = {*token_ids.values()} - {token_ids[modality] for modality in encoded}
    raw = _raw_by_row(_raw_of(model, given), [_num_runs(text, unencoded) for text in texts], bool(encoded))
    rows = list[PromptInputs | None]()
    for number, (text, num_padding) in enumerate(zip(texts, paddings, strict=True)):
        positions, offset = _positions(_of_row(given.get("position_ids"), number, num_padding), bool(token_ids))
        blocks, block_kinds = blocks_of(model, len(text), _types(given, TOKEN_TYPES, number, num_padding))
        row = PlaceholderInputs(
            tokens=text,
            token_ids=token_ids,
            features=features[number],
            raw=raw[number],
            positions=positions,
            token_types=_types(given, _READ_BY_LAYERS, number, num_padding),
            blocks=blocks,
            block_kinds=block_kinds,
            offset=offset,
            markers=frozenset(getattr(model.config, _MARKERS, None) or ()),
        )
        rows.append(None if row.is_text_alone else row)
    return rows


def _raw_of(model: Any, given: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    """Return the inputs that the model encodes in its first pass."""
    raw = {name: value for name, value in given.items() if name not in _NOT_RAW and isinstance(value, torch.Tensor)}
    if raw and not placeholder_ids(model):
        raise RequestError(
            f"{type(model).__name__} has no ids that stand for images or audio, so specdec doesn't read "
            f"{', '.join(raw)}: use its own generate()"
        )
    for name in _READ_APART & raw.keys():
        raise RequestError(
            f"specdec doesn't support layers that attend to images apart from the text ({name}): use the model's own "
            "generate()"
        )
    return raw


def _types(given: Mapping[str, Any], names: Sequence[str], number: int, num_padding: int) -> dict[str, torch.Tensor]:
    """Return a row's kinds of tokens, by the names among ``given``."""
    found = {name: _of_row(given.get(name), number, num_padding) for name in names}
    return {name: values for name, values in found.items() if values is not None}


def _by_row(
    encoded: Mapping[str, Features], texts: Sequence[Sequence[int]], token_ids: Mapping[str, int]
) -> list[dict[str, Features]]:
    """Divide features among rows by counting placeholders."""
    rows: list[dict[str, Features]] = [{} for _ in texts]
    for modality, features in encoded.items():
        if modality not in token_ids:
            raise RequestError(f"the model's configuration names no id for {modality} placeholders")
        counts, start = [text.count(token_ids[modality]) for text in texts], 0
        if sum(counts) != len(features):
            raise RequestError(
                f"the prompt has {plural(sum(counts), f'{modality} placeholder')}, but the {modality} input has "
                f"{plural(len(features), 'feature')}: give the ids and inputs of one call of the processor"
            )
        for row, count in zip(rows, counts, strict=True):
            if count:
                row[modality] = features.part(start, start + count)
            start += count
    return rows


def _num_runs(text: Sequence[int], tokens: Collection[int]) -> int:
    """Return the number of stretches of some tokens in a text."""
    return sum(is_within for is_within, _ in groupby(token in tokens for token in text))


def _raw_by_row(
    raw: Mapping[str, torch.Tensor], counts: Sequence[int], has_encoded: bool
) -> list[Mapping[str, torch.Tensor]]:
    """Divide inputs that the model encodes in its first pass among the rows that have placeholders for them.

    Args:
        counts: by row, the stretches of their placeholders.
        has_encoded: there are others that are encoded before, of which something may be left over.
    """
    if not raw or (not any(counts) and has_encoded):
        return [{} for _ in counts]
    if not any(counts):
        raise RequestError(f"{', '.join(raw)} was given, but the prompt has no placeholders for it")
    if len(counts) == 1:
        return [raw]
    if any(len(value) != sum(counts) for value in raw.values()):
        raise RequestError(
            f"{', '.join(raw)} can't be divided among {len(counts)} prompts: give one prompt at a time, or recordings "
            "with text between them"
        )
    ends = [*accumulate(counts)]
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [{name: value[span] for name, value in raw.items()} if span.start < span.stop else {} for span in spans]


def _of_row(values: Any, number: int, num_padding: int) -> torch.Tensor | None:
    """Return a row's part of (rows, tokens) or (axes, rows, tokens), without its padding; one row may stand for all."""
    if values is None:
        return None
    given = torch.as_tensor(values)
    return given[..., min(number, given.shape[-2] - 1), num_padding:]


def _positions(given: torch.Tensor | None, takes_images: bool) -> tuple[torch.Tensor | None, int]:
    """Return a row's positions, ``(axes, tokens)``, and the offset of later tokens; None if that gives them all.

    Raises:
        RequestError: for positions that aren't counted, or that differ by axis at the prompt's end.
    """
    if given is None:
        return None, 0
    table = given if given.ndim == 2 else given[None]
    counted = torch.arange(table.shape[1], device=table.device)
    ends = (table[:, -1] - counted[-1]).tolist()
    offset = ends[-1]
    is_counted = torch.equal(table, (counted + offset).expand(len(table), -1))
    if (not is_counted and len(table) == 1) or (offset and not takes_images):
        raise RequestError("specdec supports only positions counted from each prompt's first token: leave them out")
    if is_counted:
        return None, offset
    if len({*ends[1:]}) > 1:
        raise RequestError("positions behind the prompt differ by axis, as after an image: put text behind it")
    return table, offset
