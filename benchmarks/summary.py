"""The summary of a measurement: a row per contender, against the baseline on the same prompts and repeats."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from benchmarks.interleaved import Measurement, Run

Cell = tuple[int, int]  # repeat, prompt


@dataclass(frozen=True)
class Spread:
    """A median, the minimum and, for two values or more, the quartiles."""

    median: float
    least: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) < 2:
            return cls(values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, min(values), low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.low is not None else "")


@dataclass(frozen=True)
class Row:
    """A contender's figures. Ratios are None if the baseline, or the other contender, didn't run.

    ``by_repeat``: the speed over the baseline, all prompts together, over repeats. ``by_prompt``: the same per prompt,
    the median of its repeats, over prompts. ``phases`` are milliseconds per step.
    """

    contender: str
    tokens_per_second: float  # median over repeats
    by_repeat: Spread | None
    by_prompt: Spread | None
    tokens_per_step: float | None
    milliseconds_per_step: float | None
    phases: dict[str, float] | None
    peak_bytes: int | None
    num_different: int | None  # prompts whose text isn't the baseline's in every repeat
    by_category: dict[str, float] | None = None  # over the baseline, the median over a category's prompts
    over_other: Spread | None = None  # as ``by_prompt``, over another contender than the baseline
    total_bytes: int | None = None  # the peak with the model


def summarize(found: Measurement, baseline: str, categories: Sequence[str] = (), other: str | None = None) -> list[Row]:
    """A row per contender that finished, in the order they were started.

    Args:
        found: the runs.
        baseline: the contender that all are compared with.
        categories: the category of each prompt; empty if there are none.
        other: another contender to compare with.
    """
    runs: dict[str, dict[Cell, Run]] = defaultdict(dict)
    for run in found.runs:
        runs[run.contender][run.repeat, run.prompt] = run
    ended = {name: runs[name] for name in found.versions if name not in found.failures}
    rows = []
    for name, own in ended.items():
        row = _row(name, own, ended.get(baseline))
        if categories and baseline in ended:
            row = replace(row, by_category=_by_category(_prompt_ratios(own, ended[baseline]), categories))
        if other in ended:
            row = replace(row, over_other=Spread.of([*_prompt_ratios(own, ended[other]).values()]))
        rows.append(row)
    return rows


def _row(name: str, own: Mapping[Cell, Run], base: Mapping[Cell, Run] | None) -> Row:
    count = sum(len(run.tokens) for run in own.values())
    seconds = sum(run.seconds for run in own.values())
    steps = sum(run.steps or 0 for run in own.values())
    phases: dict[str, float] = defaultdict(float)
    for run in own.values():
        for phase, spent in (run.phases or {}).items():
            phases[phase] += 1e3 * spent / steps
    peaks = [run.peak_bytes for run in own.values() if run.peak_bytes is not None]
    totals = [run.total_bytes for run in own.values() if run.total_bytes is not None]
    return Row(
        contender=name,
        tokens_per_second=statistics.median(_speed(part) for part in _by_repeat(own).values()),
        by_repeat=None if base is None else Spread.of(_repeat_ratios(own, base)),
        by_prompt=None if base is None else Spread.of([*_prompt_ratios(own, base).values()]),
        tokens_per_step=count / steps if steps else None,
        milliseconds_per_step=1e3 * seconds / steps if steps else None,
        phases=dict(phases) or None,
        peak_bytes=max(peaks, default=None),
        total_bytes=max(totals, default=None),
        num_different=None if base is None else len({cell[1] for cell in own if own[cell].tokens != base[cell].tokens}),
    )


def _by_repeat(runs: Mapping[Cell, Run]) -> dict[int, list[Run]]:
    groups: dict[int, list[Run]] = defaultdict(list)
    for (repeat, _), run in runs.items():
        groups[repeat].append(run)
    return groups


def _speed(runs: Sequence[Run]) -> float:
    """Tokens per second."""
    return sum(len(run.tokens) for run in runs) / sum(run.seconds for run in runs)


def _repeat_ratios(own: Mapping[Cell, Run], base: Mapping[Cell, Run]) -> list[float]:
    theirs = _by_repeat(base)
    return [_speed(runs) / _speed(theirs[repeat]) for repeat, runs in _by_repeat(own).items()]


def _prompt_ratios(own: Mapping[Cell, Run], base: Mapping[Cell, Run]) -> dict[int, float]:
    """The median over repeats of each prompt."""
    by_prompt: dict[int, list[float]] = defaultdict(list)
    for cell, run in own.items():
        by_prompt[cell[1]].append(_speed([run]) / _speed([base[cell]]))
    return {prompt: statistics.median(ratios) for prompt, ratios in by_prompt.items()}


def _by_category(ratios: Mapping[int, float], categories: Sequence[str]) -> dict[str, float]:
    groups: dict[str, list[float]] = {category: [] for category in categories}
    for prompt, ratio in ratios.items():
        groups[categories[prompt]].append(ratio)
    return {category: statistics.median(group) for category, group in groups.items()}
