"""The results of a comparison: ranked strategies, differences between texts, and exports."""

import csv
import io
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from specdec.apps.comparison.contributions import contributions
from specdec.apps.comparison.differences import Difference, find_differences
from specdec.apps.comparison.rows import Row, row_of, speeds, tokens_per_step
from specdec.apps.comparison.runs import ComparisonPlan, Run
from specdec.apps.comparison.spec_bench import SpecBench, spec_bench
from specdec.apps.comparison.statistics import Ratio, speed_ratio, speed_value
from specdec.errors import RequestError, SpecdecError, plural, shortened
from specdec.record import PHASES

_NAME = 30  # characters of a strategy's name in ``repr``, whose lines have at most 80


class Comparison:
    """Runs of one plan, and their figures.

    Attributes:
        plan, runs: the plan, and the runs done so far.
        pairs: the prompts and repeats that every strategy has run.
        differences: one for each text that differs from plain decoding's.
        failure: the error of the strategy that ended the runs early, if any.

    Raises:
        RequestError: no prompt has been run by every strategy.
    """

    def __init__(self, plan: ComparisonPlan, runs: Sequence[Run]) -> None:
        self.plan = plan
        self.runs = list(runs)
        self._by_key = {run.key: run for run in runs}
        pairs = sorted({(run.prompt, run.repeat) for run in runs})
        self.pairs = [pair for pair in pairs if all((name, *pair) in self._by_key for name in plan.strategies)]
        if not self.pairs:
            raise RequestError("nothing to compare yet: no prompt has been run by every strategy")
        self.prompts = sorted({prompt for prompt, _ in self.pairs})
        self.differences = find_differences(plan, self._by_key, self.pairs)
        self.failure: SpecdecError | None = None

    def __repr__(self) -> str:
        state = "" if self.is_complete else ", incomplete"
        lines = [f"Comparison of {plural(len(self.prompts), 'prompt')}, {plural(self.plan.repeats, 'repeat')}{state}"]
        lines.append(f"  {'':{_NAME}}  tokens/s  tokens/step  speed over plain")
        for row in self.ranking:
            figures = f"{row.tokens_per_second:8.1f}  {row.tokens_per_step:11.2f}  {row.speed_up}"
            lines.append(f"  {shortened(row.strategy, _NAME):{_NAME}}  {figures}")
        num_defects, num_ties = len(self.defects), len(self.ties)
        lines.append(f"  texts that differ from plain decoding's: {num_defects}, and {num_ties} at numeric ties")
        return "\n".join(lines)

    @property
    def is_complete(self) -> bool:
        """True if every planned run was done."""
        return len(self._by_key) >= self.plan.num_runs

    @property
    def categories(self) -> list[str]:
        """The categories of the prompts that were run, in the prompt set's order."""
        return list(dict.fromkeys(self.plan.prompts[prompt][0] for prompt in self.prompts))

    @property
    def defects(self) -> list[Difference]:
        """The differences that are not known to be numeric ties."""
        return [found for found in self.differences if found.verdict != "numeric tie"]

    @property
    def ties(self) -> list[Difference]:
        """The differences that are numeric ties, i.e. rounding."""
        return [found for found in self.differences if found.verdict == "numeric tie"]

    def runs_of(self, strategy: str, category: str | None = None) -> list[Run]:
        """A strategy's runs on the prompts and repeats that every strategy has run; None for all categories."""
        return [
            self._by_key[strategy, prompt, repeat]
            for prompt, repeat in self.pairs
            if category in (None, self.plan.prompts[prompt][0])
        ]

    def speed_up(self, strategy: str, over: str | None = None, category: str | None = None) -> Ratio:
        """A strategy's speed over that of ``over`` (default: plain decoding), paired by prompt."""
        own, other = (speeds(self.runs_of(name, category)) for name in (strategy, over or self.plan.baseline))
        return speed_ratio(own, other, self.plan.seed)

    def category_speed_up(self, strategy: str, category: str) -> float:
        """A strategy's speed over plain decoding's, without an interval."""
        own, plain = (speeds(self.runs_of(name, category)) for name in (strategy, self.plan.baseline))
        return speed_value(own, plain)

    def tokens_per_step(self, strategy: str, category: str | None = None) -> float:
        """New tokens over forward passes."""
        return tokens_per_step(self.runs_of(strategy, category))

    @cached_property
    def rows(self) -> list[Row]:
        """Every strategy's figures, in the plan's order."""
        plain = self.runs_of(self.plan.baseline)
        return [row_of(name, self.runs_of(name), plain, self.differences, self.plan) for name in self.plan.strategies]

    @property
    def ranking(self) -> list[Row]:
        """The rows, fastest first."""
        return sorted(self.rows, key=lambda row: row.speed_up.value, reverse=True)

    @property
    def possible_winners(self) -> list[Row]:
        """The rows that can win, fastest first: all but the reference, which is plain decoding a second time."""
        return [
            row for row in self.ranking if row.strategy == self.plan.baseline or row.strategy != self.plan.reference
        ]

    @property
    def drafting(self) -> list[Row]:
        """The rows of all strategies but plain decoding, fastest first."""
        return [row for row in self.ranking if row.strategy not in self.plan.plain]

    @cached_property
    def winner(self) -> str | None:
        """The strategy whose intervals over all other strategies lie above 1, if there is one."""
        fastest, *others = (row.strategy for row in self.possible_winners)
        is_clear = others and all(self.speed_up(fastest, over=other).is_faster for other in others)
        return fastest if is_clear else None

    def to_csv(self) -> str:
        """The raw figures, a line per run."""
        text = io.StringIO()
        records = self.to_records()
        writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def to_records(self) -> list[dict[str, Any]]:
        """The raw figures, a dict per run, as ``pandas.DataFrame`` accepts them."""
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
        """Plan, figures and differences; ratios as ``[value, low, high]``, with null where there is no interval.

        ``spec_bench`` is Spec-Bench's table, null if no prompt has a Spec-Bench category.
        """
        return {
            "plan": self.plan.model_dump(exclude={"prompts"}),
            "num_prompts": len(self.prompts),
            "is_complete": self.is_complete,
            "winner": self.winner,
            "strategies": [
                row.to_json()
                | {"categories": self._by_category(row.strategy)}
                | {"sources": {own.source: own.to_json() for own in contributions(self.runs_of(row.strategy))}}
                for row in self.rows
            ],
            "differences": [
                {"category": self.plan.prompts[found.prompt][0], "name": self.plan.prompts[found.prompt][1]}
                | {name: getattr(found, name) for name in Difference.__slots__ if name != "agreed"}
                | {"position": found.position}
                for found in self.differences
            ],
            "spec_bench": table.to_json() if (table := self.spec_bench()) is not None else None,
        }

    def spec_bench(self) -> SpecBench | None:
        """Spec-Bench's table, strategies in the plan's order; None if no prompt has a Spec-Bench category."""
        category_of = [category for category, _, _ in self.plan.prompts]
        runs = {name: self.runs_of(name) for name in self.plan.strategies}
        return spec_bench(runs, self.plan.baseline, category_of)

    def _by_category(self, name: str) -> dict[str, dict[str, float]]:
        return {
            category: {
                "speed_up": self.category_speed_up(name, category),
                "tokens_per_step": self.tokens_per_step(name, category),
            }
            for category in self.categories
        }
