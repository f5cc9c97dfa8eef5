"""The settings of a strategy that a search may try, and the order in which it tries them."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec.apps.comparison.trial import Trial
from specdec.costs import Costs
from specdec.errors import RequestError, SpecdecError
from specdec.plugins.options import name_and_options
from specdec.plugins.registry import load_plugins
from specdec.strategies.base import Proposer

_NUM_SPREAD = 5  # settings screened at random before the search follows the fastest


class SearchSpace:
    """The settings of a strategy to search.

    Args:
        strategy: its name, or with fixed options, ``"name:key=value"``.
        space: values to try by option, in place of the strategy's ``tunable`` values.

    Attributes:
        num_settings: all combinations of the options' values.
        num_refused: settings that the strategy refused in the search.
        first: the first setting that the strategy accepts.

    Raises:
        SpecdecError: the strategy is unknown, has no options to vary, or refuses all settings.
    """

    def __init__(self, strategy: str, space: Mapping[str, Sequence[Any]]) -> None:
        self._registry = load_plugins()
        self._name, self._fixed = name_and_options(strategy)
        fixed, tunable = self._fixed_options(strategy)
        for name, values in space.items():
            if not values or name in fixed:
                raise RequestError(f"option {name}: give at least one value, and leave it out of {strategy!r}")
        tried = {name: values for name, values in {**tunable, **space}.items() if name not in fixed}
        if not tried:
            if fixed:
                raise RequestError(f"{strategy!r} fixes all options that tune would vary: leave one out")
            raise RequestError(
                f"{strategy} declares no values to tune: pass an option with values, or tune another strategy"
            )
        self._places = self._settings(tried)
        self.num_settings = len(self._places)
        self.num_refused = 0
        self.first = self._first()

    def _fixed_options(self, strategy: str) -> tuple[set[str], Mapping[str, Sequence[Any]]]:
        cls = self._registry.find("proposers", self._name)
        assert issubclass(cls, Proposer), "it was registered as one"
        if not self._fixed:
            return set(), cls.tunable
        proposer: Proposer = self._registry.make("proposers", strategy)
        return proposer.model_fields_set, cls.tunable

    def _first(self) -> str:
        """The first setting that the strategy accepts; raises its refusal if it accepts none."""
        refusal: SpecdecError | None = None
        for setting in self._places:
            try:
                self._registry.make("proposers", setting)
                return setting
            except SpecdecError as error:
                refusal = error
        assert refusal is not None, "there is at least one setting"
        raise refusal

    def _settings(self, tried: Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, ...]]:
        """Each setting as ``proposer=`` takes it, with the index of each option's value."""
        given = [self._fixed] if self._fixed else []
        options = [[f"{name}={_text(value)}" for value in values] for name, values in tried.items()]
        settings = {}
        for places in itertools.product(*(range(len(texts)) for texts in options)):
            chosen = [texts[place] for texts, place in zip(options, places, strict=True)]
            settings[f"{self._name}:{','.join([*given, *chosen])}"] = places
        return settings

    def search(self, screen: Callable[[str], Trial], costs: Costs, has_time: Callable[[], bool]) -> list[Trial]:
        """Screen settings while there is time, at least one, or until all are screened.

        The first few are random, with a fixed seed. Each next one is the nearest to the fastest so far, since
        neighbours are about equally fast. Settings that the strategy refuses are skipped.
        """
        untried = list(self._places)
        random.Random(0).shuffle(untried)
        found: list[Trial] = []
        refusals: list[SpecdecError] = []
        while untried and (not found or has_time()):
            setting = untried[0]
            if found and len(found) + len(refusals) >= _NUM_SPREAD:
                fastest = max(found, key=lambda trial: trial.tokens_per_second(costs)).strategy
                setting = min(untried, key=lambda other: self._distance(other, fastest))
            untried.remove(setting)
            try:
                found.append(screen(setting))
            except SpecdecError as refusal:
                refusals.append(refusal)
        self.num_refused = len(refusals)
        if not found:
            raise refusals[0]
        return found

    def _distance(self, one: str, other: str) -> int:
        """The sum of differences between the settings' value indices."""
        return sum(abs(a - b) for a, b in zip(self._places[one], self._places[other], strict=True))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
