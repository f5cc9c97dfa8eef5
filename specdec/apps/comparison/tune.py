"""Find a strategy's options for this machine, this model and these prompts.

Speed is tokens per step over seconds per step. Tokens per step depend on the text alone, so one short run measures them
for each setting. Seconds per step follow from the number of nodes by c(T), which is measured once. Only the settings
with the fastest predicted speed, the finalists, are compared in full.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from specdec.apps.comparison.options import ComparisonKeywords, ComparisonOptions
from specdec.apps.comparison.prompts import EvaluationPrompt
from specdec.apps.comparison.results import Comparison
from specdec.apps.comparison.search_space import SearchSpace
from specdec.apps.comparison.session import ComparisonSession, open_by_name
from specdec.apps.comparison.statistics import FEWEST_PROMPTS, Ratio
from specdec.apps.comparison.trial import Trial
from specdec.costs import Costs
from specdec.errors import RequestError

_SCREENING, _AGAIN, _END = 0.4, 0.55, 0.98  # shares of the time: ends of both screenings, and the last start of a run
_MOST_SCREENED = 60  # settings to fit into the time
_NUM_AGAIN = 12  # settings screened a second time
_MOST_FINALISTS = 5
_SAMPLE_PROMPTS = 4
_LEAST_SAMPLE_TOKENS = 24
_MOST_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search.

    ``strategy`` is the fastest finalist, as ``proposer=`` takes it. ``gain`` is its speed-up over plain decoding in
    ``comparison``, the finalists' runs; the best of several is slightly biased upward. ``trials`` are the screened
    settings, fastest prediction first; ``num_refused`` counts settings that the strategy refused.
    """

    strategy: str
    gain: Ratio
    trials: tuple[Trial, ...]
    num_refused: int
    comparison: Comparison
    costs: Costs

    @property
    def is_best(self) -> bool:
        """True if it is certainly faster than plain decoding, and wrote the same text."""
        return self.gain.is_faster and all(found.strategy != self.strategy for found in self.comparison.defects)


def search_space(strategy: str, space: Mapping[str, Sequence[Any]] | None, minutes: float) -> SearchSpace:
    """Check a search's arguments before a model is loaded; return the settings to search.

    Raises:
        SpecdecError: an argument is invalid.
    """
    if not 0 < minutes < math.inf:
        raise RequestError(f"minutes={minutes!r}: it must be positive and finite")
    return SearchSpace(strategy, space or {})


class Tuner:
    """A search of a strategy's options.

    Args:
        strategy: ``"lookahead"``, or with fixed options, ``"lookahead:pool_from_prompt=false"``.
        space: values to try by option, in place of the strategy's ``tunable`` values.
        minutes: duration of the search; exceeded only if one setting on six prompts takes longer.
        clock: returns seconds, which decide how long settings are screened, and how many finalists, prompts and
            repeats follow.
        options: ``verifier``, ``numerics``, ``weights``, ``backend``, ``seed``, ``chat``, and settings of
            ``Generator.generate``.

    Raises:
        SpecdecError: the strategy has no options to vary or refuses all values, or an option can't be compared.
    """

    def __init__(
        self,
        model: Any,
        strategy: str,
        prompts: Sequence[EvaluationPrompt],
        *,
        tokenizer: Any | None = None,
        space: Mapping[str, Sequence[Any]] | None = None,
        minutes: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
        **options: Unpack[ComparisonKeywords],
    ) -> None:
        self._seconds, self._clock = 60 * minutes, clock
        self._space = search_space(strategy, space, minutes)
        if isinstance(model, str | os.PathLike):
            first = {strategy: self._space.first}
            model, tokenizer = open_by_name(model, tokenizer, first, ComparisonOptions.make(options))
        self._session = ComparisonSession(model, {}, prompts, tokenizer=tokenizer, **options)
        self._prompts, self._options = prompts, options

    def run(self, on_trial: Callable[[Trial], None] | None = None) -> Tuning:
        """Measure costs, screen settings twice, run the finalists; ``on_trial`` is called after each screening."""
        session, began = self._session, self._clock()
        costs = session.costs()
        screen = _Screening(session, costs, self._space.num_settings, self._seconds * _SCREENING, on_trial)

        def left_of(share: float) -> float:
            return began + self._seconds * share - self._clock()

        screened = self._space.search(screen, costs, lambda: left_of(_SCREENING) >= 0)

        def fastest_first() -> list[Trial]:
            return sorted(screened, key=lambda trial: trial.tokens_per_second(costs), reverse=True)

        for trial in fastest_first()[:_NUM_AGAIN]:
            if left_of(_AGAIN) > 0:
                screened[screened.index(trial)] = trial.plus(screen(trial.strategy, is_second=True))
        # The less disturbed of two measurements of c(T).
        costs = min(costs, session.costs(), key=lambda measured: sum(measured.seconds))
        comparison = self._run_finalists(fastest_first(), costs, left_of(_END))
        rows = comparison.drafting
        best = next((row for row in rows if not row.num_defects), rows[0])
        return Tuning(best.strategy, best.speed_up, tuple(fastest_first()), self._space.num_refused, comparison, costs)

    def _run_finalists(self, trials: Sequence[Trial], costs: Costs, left: float) -> Comparison:
        """Compare as many finalists, on as many prompts, in as many repeats, as the ``left`` seconds allow.

        More prompts come before more repeats, since the reference is the slowest and only its texts are needed.
        """
        num_tokens, plan = self._session.settings["max_new_tokens"], self._session.plan
        plain = costs.plain if plan.reference == plan.baseline else costs.plain + costs.seconds[0]
        seconds = [num_tokens * plain]  # per prompt: plain decoding, then the finalists
        seconds += [num_tokens / trial.tokens_per_second(costs) for trial in trials[:_MOST_FINALISTS]]
        num_prompts = min(FEWEST_PROMPTS, len(self._prompts))
        while len(seconds) > 2 and num_prompts * sum(seconds) > left:
            seconds.pop()
        num_prompts = max(num_prompts, min(len(self._prompts), int(left / sum(seconds))))
        repeats = max(1, min(_MOST_REPEATS, math.ceil(left / (num_prompts * sum(seconds)))))
        finalists = {trial.strategy: trial.strategy for trial in trials[: len(seconds) - 1]}
        spread = [self._prompts[index * len(self._prompts) // num_prompts] for index in range(num_prompts)]
        options: ComparisonKeywords = {**self._options, "repeats": repeats}
        model, tokenizer = self._session.model, self._session.tokenizer
        with ComparisonSession(model, finalists, spread, tokenizer=tokenizer, **options) as session:
            return session.run(seconds=left, fewest_prompts=min(FEWEST_PROMPTS, num_prompts))


class _Screening:
    """Short runs of a setting, which measure tokens and nodes per step and the host's work."""

    def __init__(
        self,
        session: ComparisonSession,
        costs: Costs,
        num_settings: int,
        seconds: float,
        on_trial: Callable[[Trial], None] | None,
    ) -> None:
        self._session = session
        self._on_trial = on_trial
        num_prompts = len(session.plan.prompts)
        spread = [index * num_prompts // (2 * _SAMPLE_PROMPTS) for index in range(2 * _SAMPLE_PROMPTS)]
        self._samples = spread[::2], spread[1::2]
        # Allow for a token's cost of twice plain decoding's.
        tokens = seconds / (2 * costs.seconds[0]) / min(num_settings, _MOST_SCREENED) / _SAMPLE_PROMPTS
        self._num_tokens = min(session.settings["max_new_tokens"], max(_LEAST_SAMPLE_TOKENS, int(tokens)))

    def __call__(self, strategy: str, is_second: bool = False) -> Trial:
        settings = dict(self._session.settings)
        settings["max_new_tokens"] = min(settings["max_new_tokens"], self._num_tokens * (1 + is_second))
        with self._session.generator(strategy) as generator:
            decode = self._session.decoder(generator, settings)
            runs = [decode(prompt, self._session.plan.seed).stats for prompt in self._samples[is_second]]
        trial = Trial(
            strategy,
            sum(stats.num_tokens for stats in runs),
            sum(stats.steps for stats in runs),
            sum(stats.num_nodes for stats in runs),
            sum(stats.total_seconds - stats.seconds["forward"] for stats in runs),
        )
        if self._on_trial is not None:
            self._on_trial(trial)
        return trial
