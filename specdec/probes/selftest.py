"""A test at load: do draft passes give what the model's own forward gives?

The reference is the model's own forward without a cache, so nothing of specdec takes part in it. A deep model in half
precision rounds by a good part of what a mistake does, so no fixed tolerance serves all models. The model itself sets
the bound on a pass's error, in root mean squares over the vocabulary, relative to the spread of its logits:

- noise: how much its own passes differ over one text: alone, beside other texts, and in parts;
- rounding: the dtype's own;
- effect: what another token in a node's past, or a position off by one, does to its logits.

The bound lies half way, by ratio, between the first two and the last.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.backends.base import Backend, Deviation
from specdec.errors import in_one_line
from specdec.layout import Compiler
from specdec.probes.walk import Walk, walk

_REFERENCE = 12  # tokens
_PARTS = 2, 6, 9  # tokens
_MOST_NOISE = 2.0  # of what was measured on a few tokens
_MOST_ROUNDING = 4.0
_TAIL = 4.0


@dataclass(frozen=True, slots=True)
class Tried:
    """The reason why a model can't be driven, "" where it can, and how far its passes deviate from plain steps."""

    fault: str
    deviation: Deviation


def probe(backend: Backend, model: PreTrainedModel, compiler: Compiler) -> Tried:
    """Walk a text, and hold the logits of every pass against the model's own forward."""
    try:
        embeddings = model.get_input_embeddings().weight
        # A model may have ids that nobody uses, with anything for a vector: NaN was seen.
        walked = walk(backend, compiler, lambda ids: embeddings[ids].isfinite().all(-1).tolist())
        fault = walked.fault and f"{type(compiler).__name__} lays out a wrong pass: {walked.fault}"
        return Tried(fault or _judge(model, walked), walked.deviation())
    except Exception as error:  # third-party modelling code: whatever it raises means that it can't be driven so
        return Tried(f"its forward raised {in_one_line(error)}", Deviation("", 0.0))


@torch.inference_mode()
def _judge(model: PreTrainedModel, walked: Walk) -> str:
    """Return why the passes of a kind are wrong, or ""."""
    tokens = walked.tokens[:_REFERENCE]
    reference = _own_logits(model, [tokens])[0]
    bound, spread = _bound(model, tokens, reference), _spread(reference)
    errors: dict[str, list[float]] = {}
    for kind, position, logits in _passes(walked):
        # Behind a long context plain steps are the reference: a pass of the model's own over it takes too long.
        is_near = position < len(reference)
        expected = reference[position] if is_near else walked.plain[position].float()
        where = kind if is_near else f"{kind} behind a long context"
        errors.setdefault(where, []).append(_distance(logits.float()[None], expected[None]) / spread)
    for where, found in errors.items():
        # Rounding has a long tail: a single position may be off by several times what most are.
        error = max(median(found), max(found) / _TAIL) if all(map(math.isfinite, found)) else math.nan
        if not error <= bound:
            return f"{where} differ from plain forward passes by {error:.2g} of the logits' spread; allowed {bound:.2g}"
    return ""


def _passes(walked: Walk) -> Iterator[tuple[str, int, torch.Tensor]]:
    yield from (("plain steps", position, logits) for position, logits in walked.plain.items())
    yield from (("draft passes", found.position, found.logits) for found in walked.others)


def _bound(model: PreTrainedModel, tokens: Sequence[int], reference: torch.Tensor) -> float:
    """Return the largest error of a right pass, relative to the logits' spread."""
    text, other = list(tokens), tokens[0]
    same, other_parent, other_end = _own_logits(model, [text, [*text[:-2], other, text[-1]], [*text[:-1], other]])
    noise = _distance(same, reference)
    if _distance(other_end[:-1], same[:-1]) <= _MOST_NOISE * noise:  # it is causal, so that parts of a text may serve
        parts = (_own_logits(model, [text[:length]])[0] for length in _PARTS)
        noise = max(noise, *(_distance(part, reference[: len(part)]) for part in parts))
    # Norms and rotary embeddings are float32 in float64 models too.
    eps = max(torch.finfo(model.dtype).eps, torch.finfo(torch.float32).eps)
    rounding = max(_MOST_NOISE * noise, _MOST_ROUNDING * eps * _spread(reference))
    effects = _distance(other_parent[-1:], same[-1:]), _effect_of_a_position(model, text)
    # A mistake that does no more than rounding can't be told from it: a position where the model reads none.
    least = min((effect for effect in effects if effect > rounding), default=rounding)
    return math.sqrt(rounding * least) / _spread(reference)


def _effect_of_a_position(model: PreTrainedModel, text: Sequence[int]) -> float:
    if "position_ids" not in signature(model.forward).parameters:
        return 0.0
    places = list(range(len(text)))
    right, shifted = _own_logits(model, [text, text], [places, [*places[:-1], places[-2]]])[:, -1:]
    return _distance(shifted, right)


def _own_logits(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], positions: Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """Return the model's own logits for texts of one length, (texts, tokens, vocab), float32, without a cache."""
    extra: dict[str, Any] = {}
    if positions is not None:
        places = torch.tensor(positions, device=model.device)
        # A mask is given, lest a gap between positions be taken for the border of two texts.
        extra = {"position_ids": places, "attention_mask": torch.ones_like(places)}
    logits: torch.Tensor = model(torch.tensor(texts, device=model.device), use_cache=False, **extra).logits
    return logits.float()


def _distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square over the vocabulary, the greatest of all positions."""
    return float((logits - expected).square().mean(-1).sqrt().max())


def _spread(logits: torch.Tensor) -> float:
    return float(logits.std().clamp_min(1e-6))
