"""A test at load: do draft passes give what the model's own forward gives?

The reference is the model's own forward without a cache, so nothing of specdec takes part in it. A deep model in half
precision rounds by a good part of what a mistake does, so no fixed tolerance serves all models. The model itself sets
the bound on a pass's error, in root mean squares over the vocabulary, relative to the spread of its logits:

- noise: how much its own passes of other shapes differ over the same text;
- rounding: the dtype's own;
- effect: what another token in a node's past, or a position off by one, does to its logits.

The bound lies half way, by ratio, between the first two and the last.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec.backends.base import Backend, Deviation
from specdec.errors import in_one_line
from specdec.layout import Compiler
from specdec.probes.walk import Walk, walk

_REFERENCE = 12  # tokens
_SHORT = 8  # tokens, of the passes that noise and effects are measured with
_MOST_NOISE = 2.0  # of what was measured on a few tokens
_MOST_ROUNDING = 4.0


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
    """Return why a pass of the walk is wrong, or ""."""
    tokens = walked.tokens[:_REFERENCE]
    reference = _own_logits(model, [tokens])[0]
    spread, bound = _spread(reference), _bound(model, tokens, reference)
    for kind, position, logits in _passes(walked):
        # Behind a long context plain steps are the reference: a pass of the model's own over it takes too long.
        expected = reference[position] if position < len(reference) else walked.plain[position].float()
        error = _distance(logits.float(), expected) / spread
        if not error <= bound:
            return (
                f"{kind} gives logits that differ from plain forward passes by {error:.2g} of their spread, where "
                f"rounding explains {bound:.2g}"
            )
    return ""


def _passes(walked: Walk) -> Iterator[tuple[str, int, torch.Tensor]]:
    yield from (("a plain step", position, logits) for position, logits in walked.plain.items())
    yield from ((found.kind, found.position, found.logits) for found in walked.others)


def _bound(model: PreTrainedModel, tokens: Sequence[int], reference: torch.Tensor) -> float:
    """Return the largest error of a right pass, relative to the logits' spread."""
    spread = _spread(reference)
    # Norms and rotary embeddings are float32 in float64 models too.
    rounding = _MOST_ROUNDING * max(torch.finfo(model.dtype).eps, torch.finfo(torch.float32).eps)
    for length in (_SHORT // 4, _SHORT):
        text = list(tokens[:length])
        noise = _distance(_own_logits(model, [text])[0], reference[: len(text)])
        rounding = max(rounding, _MOST_NOISE * noise / spread)
    # A mistake that does no more than rounding can't be told from it: a position where the model reads none.
    effects = [effect / spread for effect in _effects(model, tokens) if effect / spread > rounding]
    return math.sqrt(rounding * min(effects, default=rounding))


def _effects(model: PreTrainedModel, tokens: Sequence[int]) -> list[float]:
    """Return what mistakes do to a node's logits: another token in the place of its parent, and a position too many."""
    if len(tokens) <= _SHORT:
        return []
    text, places = list(tokens[:_SHORT]), list(range(_SHORT))
    mistaken = [*text[:-2], tokens[_SHORT], text[-1]]
    right, wrong_parent, shifted = _own_logits(model, [text, mistaken, text], [places, places, [*places[:-1], _SHORT]])[
        :, -1:
    ]
    return [_distance(wrong_parent, right), _distance(shifted, right)]


def _own_logits(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], positions: Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """Return the model's own logits for texts of one length, (texts, tokens, vocab), float32, without a cache."""
    extra: dict[str, Any] = {}
    if positions is not None and "position_ids" in signature(model.forward).parameters:
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
