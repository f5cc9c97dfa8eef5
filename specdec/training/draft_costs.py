"""The costs of drafting with each kind of head on this machine, timed with heads that aren't trained."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from specdec.generator import Generator
from specdec.heads.precision import dtype_of
from specdec.machine.timing import Timer, timed_rounds
from specdec.probes.costs import CONTEXT, measure_costs
from specdec.target import Target
from specdec.training.base import DEPTH, HeadTraining
from specdec.tree import ROOT, DraftTree

_STEP = "step"
_SIZES = 1, 3, DEPTH + 1  # of timed steps, no more than are measured in any case
_ROUNDS, _SECONDS = 12, 3.0  # of the steps, and again of the drafts
_WEIGHT = 0.01  # any finite number that isn't zero: a system maps all pages of zeros to one


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The costs of steps and drafts, in plain steps of the target.

    Attributes:
        steps: of a step by its number of draft tokens, from 1 on.
        drafts: of a kind's draft by its number of draft tokens, from 1 on.
    """

    steps: Sequence[float]
    drafts: Mapping[str, Sequence[float]]


def measure_draft_costs(
    model: Any, kinds: Sequence[type[HeadTraining]], draft_vocab_size: int, timer: Timer | None = None
) -> DraftCosts:
    """Time steps of a model on torch, as it decodes by default, and drafts by heads of the sizes that are planned.

    Args:
        model: the target.
        kinds: of heads.
        draft_vocab_size: of their draft vocabulary, at most the target's.
        timer: times the passes.

    Raises:
        SpecdecError: if the model isn't supported.
    """
    timer = timer or Timer()
    with (
        Generator(model, proposer="autoregressive", numerics="fast", backend="hf") as generator,
        closing(generator.open_target()) as target,
    ):
        costs = measure_costs(target, _SIZES, CONTEXT, _ROUNDS, timer, seconds=_SECONDS)
        drafters = {kind.strategy: _drafter(model, kind, draft_vocab_size) for kind in kinds}
        drafts = _relative(target, drafters, timer)
    lengths = range(1, DEPTH + 1)
    return DraftCosts(
        [costs.relative_at(1 + length) for length in lengths],
        {name: np.interp(lengths, (1, DEPTH), ends).tolist() for name, ends in drafts.items()},
    )


def _drafter(model: Any, kind: type[HeadTraining], draft_vocab_size: int) -> Callable[[int], object]:
    """Return the drafting of a head of a kind that isn't trained, in the dtype in which its strategy runs it."""
    embeddings = model.get_input_embeddings().weight
    training = kind.untrained(model, torch.arange(min(draft_vocab_size, len(embeddings))))
    for parameter in training.head.parameters():
        parameter.data = torch.full_like(parameter, _WEIGHT, dtype=dtype_of("auto", embeddings))
    return training.drafter(CONTEXT)


def _relative(
    target: Target, drafters: Mapping[str, Callable[[int], object]], timer: Timer
) -> dict[str, tuple[float, float]]:
    """Return the costs of drafts of one token and of ``DEPTH`` tokens, in plain steps that alternate with them."""
    row = target.open(2 * CONTEXT)
    target.read_all(row, [0] * min(CONTEXT, target.shapes.context_length // 2))

    def step() -> None:
        output = target.forward(target.compile({row: DraftTree(0)}))
        output.rows[row].is_finite(ROOT)  # waits for a device

    contenders: dict[str, Callable[[], object]] = {_STEP: step}
    for name, draft in drafters.items():
        for length in (1, DEPTH):
            contenders[f"{name} {length}"] = partial(draft, length)
    seconds = timed_rounds(contenders, _ROUNDS, timer, seconds=_SECONDS).seconds
    target.release(row)

    def ratio(name: str) -> float:
        return float(np.median(np.divide(seconds[name], seconds[_STEP])))

    return {name: (ratio(f"{name} 1"), ratio(f"{name} {DEPTH}")) for name in drafters}
