"""Find a strategy's options for this machine, this model and these prompts.

Speed is tokens per step over seconds per step. How many tokens a step brings depends on the text alone, so a short run
measures it once for each setting that is tried; what a step costs follows from its nodes by c(T), which is measured
once for all. Only the settings that this predicts to be the fastest are run against each other in earnest.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.comparison.costs import Costs, measure_costs
from specdec.comparison.extras import needs
from specdec.comparison.prompts import EvaluationPrompt
from specdec.comparison.results import Comparison
from specdec.comparison.session import Session
from specdec.comparison.statistics import Ratio
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.plugins import load_plugins
from specdec.strategies.base import Proposer

_NUM_FINALISTS = 4
_SCREENING_SHARE = 0.55  # of the time; what is left is for the finalists
_MOST_SCREENED = 60  # settings that the time is meant to be enough for
_SAMPLE_PROMPTS = 4
_LEAST_SAMPLE_TOKENS = 24
_MOST_REPEATS = 5
_MOST_OLD_SUGGESTIONS = 50  # in a row: the search has nothing new to ask


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, screened.

    ``seconds_per_step`` is predicted: c(T) of its mean number of nodes, and what its host work took.
    """

    strategy: str
    tokens_per_step: float
    nodes_per_step: float
    seconds_per_step: float

    @property
    def tokens_per_second(self) -> float:
        """Predicted."""
        return self.tokens_per_step / self.seconds_per_step


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search came to.

    ``strategy`` is the best setting's string, ready for ``proposer=``; ``gain`` is over plain decoding, from
    ``comparison``, the finalists' runs.
    """

    strategy: str
    gain: Ratio
    trials: tuple[Trial, ...]
    comparison: Comparison
    costs: Costs


class Tuner:
    """A search of a strategy's options, made ready.

    Args:
        strategy: ``"lookahead"``, or with options that are to stay as they are, ``"lookahead:pool_from_prompt=false"``.
        space: the values to try of each option; the strategy's own ``tunable`` where it is None.
        minutes: when the search is to be over.
        options: ``seed``, and settings as for ``Generator.generate``.

    Raises:
        SpecdecError: for a strategy without options to vary, values that it refuses, and whatever can't be compared.
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
        **options: Any,
    ) -> None:
        if not minutes > 0:
            raise RequestError(f"minutes={minutes!r}: it must be above 0")
        self._seconds = 60 * minutes
        self._space = _Space(strategy, space)
        self._session = Session(model, {}, prompts, tokenizer=tokenizer, **options)
        self._prompts, self._options = prompts, options

    def run(self, on_trial: Callable[[Trial], None] | None = None) -> Tuning:
        """Measure costs, screen settings, and run the best of them in earnest; ``on_trial`` hears of each screened."""
        session, began = self._session, time.perf_counter()
        costs = measure_costs(session.driver())
        screen = _Screening(session, costs, self._space.num_settings, self._seconds * _SCREENING_SHARE)
        trials = self._space.search(screen, began + self._seconds * _SCREENING_SHARE, session.plan.seed, on_trial)
        best = sorted(trials, key=lambda trial: -trial.tokens_per_second)[:_NUM_FINALISTS]
        finalists = {trial.strategy: trial.strategy for trial in best}
        left = began + self._seconds - time.perf_counter()
        speeds = (1 / costs.seconds[0], *(trial.tokens_per_second for trial in best))
        seconds_per_repeat = len(self._prompts) * session.settings["max_new_tokens"] * sum(1 / s for s in speeds)
        options = {**self._options, "repeats": max(1, min(_MOST_REPEATS, math.ceil(left / seconds_per_repeat)))}
        final = Session(session.model, finalists, self._prompts, tokenizer=session.tokenizer, **options)
        comparison = final.run(seconds=left)
        fastest = max(finalists, key=lambda name: comparison.speed_up(name).value)
        return Tuning(fastest, comparison.speed_up(fastest), tuple(trials), comparison, costs)


class _Screening:
    """A short run of a setting: what a step brings, and what it should cost."""

    def __init__(self, session: Session, costs: Costs, num_settings: int, seconds: float) -> None:
        self._session, self._costs = session, costs
        prompts = session.plan.prompts
        self._prompts = [list(ids) for *_, ids in prompts[:: max(1, len(prompts) // _SAMPLE_PROMPTS)]][:_SAMPLE_PROMPTS]
        # As many tokens as let most settings be tried, if a token costs them what it costs plain decoding, twice.
        tokens = seconds / (2 * costs.seconds[0]) / min(num_settings, _MOST_SCREENED) / len(self._prompts)
        most = session.settings["max_new_tokens"]
        self._num_tokens = min(most, max(_LEAST_SAMPLE_TOKENS, int(tokens)))

    def __call__(self, strategy: str) -> Trial:
        session = self._session
        generator = Generator(session.model, session.tokenizer, proposer=strategy)
        settings = {**session.settings, "max_new_tokens": self._num_tokens}
        runs = [generator.generate(ids, seed=session.plan.seed, **settings).stats for ids in self._prompts]
        num_steps = sum(stats.steps for stats in runs)
        nodes = sum(stats.num_nodes for stats in runs) / num_steps
        host = sum(stats.total_seconds - stats.seconds["forward"] for stats in runs) / num_steps
        tokens = sum(stats.num_tokens for stats in runs)
        return Trial(strategy, tokens / num_steps, nodes, self._costs.at(nodes) + host)


class _Space:
    """The settings of a strategy."""

    def __init__(self, strategy: str, space: Mapping[str, Sequence[Any]] | None) -> None:
        registry = load_plugins()
        self._name, _, self._fixed = strategy.partition(":")
        proposer: Proposer = registry.make("proposers", strategy)
        fixed = proposer.model_fields_set
        self._space = {
            name: tuple(values) for name, values in (space or proposer.tunable).items() if space or name not in fixed
        }
        if not self._space:
            raise RequestError(f"{strategy} has no options to tune: name them, with the values to try")
        for name, values in self._space.items():
            if not values or name in fixed:
                raise RequestError(f"option {name}: give at least one value, and leave it out of {strategy!r}")
        self.num_settings = math.prod(map(len, self._space.values()))
        for name, values in self._space.items():  # a wrong name or value is refused before anything runs
            for value in values:
                registry.make("proposers", self._string({name: value}))

    def _string(self, options: Mapping[str, Any]) -> str:
        """A setting as ``proposer=`` takes it."""
        given = [self._fixed] if self._fixed else []
        return f"{self._name}:{','.join([*given, *(f'{name}={_text(value)}' for name, value in options.items())])}"

    def search(
        self,
        screen: Callable[[str], Trial],
        deadline: float,
        seed: int,
        on_trial: Callable[[Trial], None] | None,
    ) -> list[Trial]:
        """Screen settings, those likely to be fast first, until the deadline or until there is nothing new.

        The next setting is optuna's to choose (tree-structured Parzen estimators: Bergstra et al. 2011).
        """
        optuna = needs("optuna")
        optuna.logging.disable_default_handler()
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        screened: dict[str, Trial] = {}
        num_old = 0
        while len(screened) < self.num_settings and num_old < _MOST_OLD_SUGGESTIONS:
            asked = study.ask()
            # Places among ascending values, so that the search knows neighbours.
            chosen = {name: values[asked.suggest_int(name, 0, len(values) - 1)] for name, values in self._space.items()}
            strategy = self._string(chosen)
            num_old = num_old + 1 if strategy in screened else 0
            if strategy not in screened:
                screened[strategy] = screen(strategy)
                if on_trial is not None:
                    on_trial(screened[strategy])
            study.tell(asked, screened[strategy].tokens_per_second)
            if time.perf_counter() > deadline:
                break
        return list(screened.values())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
