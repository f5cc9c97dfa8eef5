"""The results of a comparison: speed with intervals, acceptance, time by phase, and whether the texts agree."""

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from specdec.comparison.contributions import earnings
from specdec.comparison.runs import Plan, Run
from specdec.comparison.spec_bench import spec_bench
from specdec.comparison.statistics import Ratio, speed_ratio, speed_value
from specdec.comparison.summary import summary
from specdec.decoding.phases import PHASES
from specdec.errors import RequestError, SpecdecError

Categories = str | Collection[str] | None  # of prompts: one, several, or all


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a strategy's text leaves plain decoding's, in the numerics of both.

    ``agreed`` are the new tokens before it. ``token`` and ``expected`` are the strategy's id there and plain
    decoding's, None where the text had ended. ``verdict`` and ``reason`` say what it is (``ties.py``), the verdict None
    where that wasn't examined; ``margin`` is by how much plain decoding's score of ``expected`` exceeds that of
    ``token``, None where either is missing or the model wasn't asked.
    """

    strategy: str
    prompt: int
    repeat: int
    agreed: tuple[int, ...]
    token: int | None
    expected: int | None
    verdict: Literal["numeric tie", "defect"] | None = None
    reason: str = ""
    margin: float | None = None

    @property
    def position(self) -> int:
        """The number of new tokens before it."""
        return len(self.agreed)


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy's figures over the prompts and repeats that every strategy has run.

    ``speed_up`` is over ordinary plain decoding, in fast numerics. ``seconds`` are per step, by phase.
    ``num_different`` counts texts that aren't those of plain decoding in the strategy's own numerics, and is None under
    an acceptance rule that doesn't promise the same tokens; ``num_ties`` of them are numeric ties.
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
        """Texts that differ by more than rounding, or by what wasn't examined."""
        return (self.num_different or 0) - self.num_ties


class Comparison:
    """Runs of one plan, and their figures.

    Attributes:
        plan, runs: what was planned, and what was run of it.
        differences: texts that aren't plain decoding's, one for each; see ``Difference``.
        failure: what ended the runs early, where a strategy failed.

    Raises:
        RequestError: where no prompt has been run by every strategy.
    """

    def __init__(self, plan: Plan, runs: Sequence[Run]) -> None:
        self.plan = plan
        self.runs = list(runs)
        self._by_cell = {run.cell: run for run in runs}
        pairs = sorted({(run.prompt, run.repeat) for run in runs})
        self.pairs = [pair for pair in pairs if all((name, *pair) in self._by_cell for name in plan.strategies)]
        if not self.pairs:
            raise RequestError("nothing to compare yet: no prompt has been run by every strategy")
        self.prompts = sorted({prompt for prompt, _ in self.pairs})
        self.differences = self._find_differences()
        self.failure: SpecdecError | None = None

    def __repr__(self) -> str:
        return summary(self)

    @property
    def is_complete(self) -> bool:
        """True if everything planned was run."""
        return len(self._by_cell) >= len(self.plan.strategies) * len(self.plan.prompts) * self.plan.repeats

    @property
    def categories(self) -> list[str]:
        """The categories of the prompts that were run, in the order of the prompt set."""
        return list(dict.fromkeys(self.plan.prompts[prompt][0] for prompt in self.prompts))

    @property
    def defects(self) -> list[Difference]:
        """The differences that are no numeric ties, as far as that was examined."""
        return [found for found in self.differences if found.verdict != "numeric tie"]

    @property
    def ties(self) -> list[Difference]:
        """The differences that are rounding."""
        return [found for found in self.differences if found.verdict == "numeric tie"]

    def runs_of(self, strategy: str, category: Categories = None) -> list[Run]:
        """A strategy's runs that every other strategy has a counterpart of."""
        chosen = (category,) if isinstance(category, str) else category
        return [
            self._by_cell[strategy, prompt, repeat]
            for prompt, repeat in self.pairs
            if chosen is None or self.plan.prompts[prompt][0] in chosen
        ]

    def speed_up(self, strategy: str, over: str | None = None, category: Categories = None) -> Ratio:
        """Return a strategy's speed over that of ``over`` (plain decoding, where none is named), paired by prompt."""
        own, other = (self.speeds(name, category) for name in (strategy, over or self.plan.baseline))
        return speed_ratio(own, other, self.plan.seed)

    def category_speed_up(self, strategy: str, category: Categories) -> float:
        """Return a strategy's speed over plain decoding's on these prompts, without an interval."""
        return speed_value(self.speeds(strategy, category), self.speeds(self.plan.baseline, category))

    def speeds(self, strategy: str, category: Categories = None) -> np.ndarray:
        """Tokens and seconds of each prompt, shape ``(2, prompts)``: the medians of its repeats.

        A median leaves out the run that the machine was busy with something else in.
        """
        by_prompt: dict[int, list[Run]] = {}
        for run in self.runs_of(strategy, category):
            by_prompt.setdefault(run.prompt, []).append(run)
        return np.array(
            [
                [np.median([len(run.tokens) for run in runs]), np.median([run.seconds for run in runs])]
                for runs in by_prompt.values()
            ]
        ).T

    def tokens_per_step(self, strategy: str, category: Categories = None) -> float:
        """New tokens over forward passes."""
        lengths = [length for run in self.runs_of(strategy, category) for length in run.accepted_lengths]
        return float(np.mean(lengths))

    @cached_property
    def rows(self) -> list[Row]:
        """Every strategy's figures, in the order of the plan."""
        return [self._row(name) for name in self.plan.strategies]

    @property
    def ranking(self) -> list[Row]:
        """The rows, the fastest first."""
        return sorted(self.rows, key=lambda row: row.speed_up.value, reverse=True)

    @property
    def contenders(self) -> list[Row]:
        """Those that can be the winner, the fastest first: the reference is plain decoding once more."""
        return [
            row for row in self.ranking if row.strategy == self.plan.baseline or row.strategy != self.plan.reference
        ]

    @property
    def drafting(self) -> list[Row]:
        """The rows of all but plain decoding, the fastest first."""
        return [row for row in self.ranking if row.strategy not in self.plan.plain]

    @cached_property
    def winner(self) -> str | None:
        """The strategy whose interval over each other one lies above 1, if any's does."""
        fastest, *others = (row.strategy for row in self.contenders)
        is_clear = others and all(self.speed_up(fastest, over=other).is_faster for other in others)
        return fastest if is_clear else None

    def to_csv(self) -> str:
        """A line per run: the raw figures."""
        text = io.StringIO()
        records = self.to_records()
        writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def to_records(self) -> list[dict[str, Any]]:
        """A plain dict per run, the raw figures; ``pandas.DataFrame`` takes them as they are."""
        return [
            {
                "strategy": run.strategy,
                "category": self.plan.prompts[run.prompt][0],
                "prompt": self.plan.prompts[run.prompt][1],
                "repeat": run.repeat,
                "seconds": run.seconds,
                "tokens": len(run.tokens),
                "steps": len(run.accepted_lengths),
                "nodes": run.num_nodes,
                "cache_bytes": run.cache_bytes,
                **{f"{phase}_seconds": run.phases[phase] for phase in PHASES},
            }
            for run in self.runs
        ]

    def to_json(self) -> dict[str, Any]:
        """Plan, figures and differences; ratios as ``[value, low, high]``, null where there is no interval.

        ``spec_bench`` is Spec-Bench's table, null where no prompt has a category of its.
        """
        return {
            "plan": self.plan.model_dump(exclude={"prompts"}),
            "num_prompts": len(self.prompts),
            "is_complete": self.is_complete,
            "winner": self.winner,
            "strategies": [
                _row_as_json(row)
                | {"categories": self._by_category(row.strategy)}
                | {"sources": {own.source: own.to_json() for own in earnings(self, row.strategy)}}
                for row in self.rows
            ],
            "differences": [
                {"category": self.plan.prompts[found.prompt][0], "name": self.plan.prompts[found.prompt][1]}
                | {name: getattr(found, name) for name in Difference.__slots__ if name != "agreed"}
                | {"position": found.position}
                for found in self.differences
            ],
            "spec_bench": table.to_json() if (table := spec_bench(self)) is not None else None,
        }

    def _by_category(self, name: str) -> dict[str, dict[str, float]]:
        return {
            category: {
                "speed_up": self.category_speed_up(name, category),
                "tokens_per_step": self.tokens_per_step(name, category),
            }
            for category in self.categories
        }

    def _row(self, name: str) -> Row:
        runs = self.runs_of(name)
        num_steps = sum(len(run.accepted_lengths) for run in runs)
        tokens, seconds = self.speeds(name)
        return Row(
            strategy=name,
            tokens_per_second=float(tokens.sum() / seconds.sum()),
            tokens_per_step=self.tokens_per_step(name),
            speed_up=self.speed_up(name),
            nodes_per_step=sum(run.num_nodes for run in runs) / num_steps,
            seconds={phase: sum(run.phases[phase] for run in runs) / num_steps for phase in PHASES},
            cache_bytes=max(run.cache_bytes for run in runs),
            num_texts=len(runs),
            num_different=sum(found.strategy == name for found in self.differences)
            if self.plan.promises[name] == "tokens"
            else None,
            num_ties=sum(found.strategy == name and found.verdict == "numeric tie" for found in self.differences),
        )

    def _find_differences(self) -> list[Difference]:
        found = []
        for name, promise in self.plan.promises.items():
            for prompt, repeat in self.pairs if promise == "tokens" else ():
                ours = self._by_cell[name, prompt, repeat].tokens
                plain = self._by_cell[self.plan.reference_of(name), prompt, repeat].tokens
                place = first_difference(ours, plain)
                if place is not None:
                    token, expected = (text[place] if place < len(text) else None for text in (ours, plain))
                    difference = Difference(name, prompt, repeat, plain[:place], token, expected)
                    if not self.plan.inexact[name]:
                        difference = replace(difference, verdict="defect", reason="numerics are bit-exact")
                    found.append(difference)
        return found


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The place, from 0, where two texts part; None where they are identical."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return None if len(first) == len(second) else min(len(first), len(second))


def _row_as_json(row: Row) -> dict[str, Any]:
    entry = {name: getattr(row, name) for name in Row.__slots__}
    low, high = (bound if np.isfinite(bound) and bound > 0 else None for bound in (row.speed_up.low, row.speed_up.high))
    return entry | {"speed_up": [row.speed_up.value, low, high]}
