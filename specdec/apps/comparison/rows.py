"""One strategy's figures in a comparison: speed, acceptance, time by phase, and how many texts differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.apps.comparison.differences import Difference
from specdec.apps.comparison.runs import ComparisonPlan, Run
from specdec.apps.comparison.statistics import Ratio, speed_ratio
from specdec.record import PHASES


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy's figures over the prompts and repeats that every strategy has run.

    ``speed_up`` is over plain decoding in fast numerics. ``seconds`` are per step, by phase. ``num_different`` counts
    texts that differ from plain decoding in the strategy's own numerics, ``num_ties`` of them at numeric ties; it is
    None under an acceptance rule that doesn't promise the same tokens.
    """

    strategy: str
    tokens_per_second: float
    tokens_per_step: float
    speed_up: Ratio
    nodes_per_step: float
    seconds: dict[str, float]
    cache_bytes: int
    num_texts: int
    num_different: int | None
    num_ties: int = 0

    @property
    def num_defects(self) -> int:
        """Texts that differ by more than rounding, or were not examined."""
        return (self.num_different or 0) - self.num_ties

    def to_json(self) -> dict[str, Any]:
        """The figures by name; the speed-up as ``[value, low, high]``, with null where there is no interval."""
        entry = {name: getattr(self, name) for name in Row.__slots__}
        bounds = (self.speed_up.low, self.speed_up.high)
        low, high = (bound if np.isfinite(bound) and bound > 0 else None for bound in bounds)
        return entry | {"speed_up": [self.speed_up.value, low, high]}


def row_of(
    name: str, runs: Sequence[Run], plain: Sequence[Run], differences: Sequence[Difference], plan: ComparisonPlan
) -> Row:
    """A strategy's figures from its runs, those of plain decoding on the same prompts, and all differences."""
    num_steps = sum(len(run.accepted_lengths) for run in runs)
    tokens, seconds = own = speeds(runs)
    different = [found for found in differences if found.strategy == name]
    return Row(
        strategy=name,
        tokens_per_second=float(tokens.sum() / seconds.sum()),
        tokens_per_step=tokens_per_step(runs),
        speed_up=speed_ratio(own, speeds(plain), plan.seed),
        nodes_per_step=sum(run.num_nodes for run in runs) / num_steps,
        seconds={phase: sum(run.phases[phase] for run in runs) / num_steps for phase in PHASES},
        cache_bytes=max(run.cache_bytes for run in runs),
        num_texts=len(runs),
        num_different=len(different) if plan.promises[name] == "tokens" else None,
        num_ties=sum(found.verdict == "numeric tie" for found in different),
    )


def speeds(runs: Sequence[Run]) -> np.ndarray:
    """Tokens and seconds of each prompt, shape ``(2, prompts)``: medians over repeats.

    A median drops the run that something else on the machine disturbed.
    """
    by_prompt: dict[int, list[Run]] = {}
    for run in runs:
        by_prompt.setdefault(run.prompt, []).append(run)
    return np.array(
        [
            [np.median([len(run.tokens) for run in repeats]), np.median([run.seconds for run in repeats])]
            for repeats in by_prompt.values()
        ]
    ).T


def tokens_per_step(runs: Sequence[Run]) -> float:
    """New tokens over forward passes."""
    return float(np.mean([length for run in runs for length in run.accepted_lengths]))
