"""The search: what it tries, what it keeps, what it refuses."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specdec import SpecdecError, ToyModel
from specdec.apps.comparison import EvaluationPrompt
from specdec.apps.comparison.figures.trade_off import save_trade_off
from specdec.apps.comparison.search_space import SearchSpace
from specdec.apps.comparison.sentences import found_by_search
from specdec.apps.comparison.trial import Trial
from specdec.apps.comparison.tune import Tuner, Tuning
from specdec.costs import Costs
from tests.apps.comparison.reported import COSTS, build

MODEL = ToyModel.random(8, order=2, seed=3, sharpness=4.0)
PROMPTS = [EvaluationPrompt("toy", str(n), [1, 2, n]) for n in range(6)]


def tuner(strategy: str, **options: Any) -> Tuner:
    return Tuner(MODEL, strategy, PROMPTS, **{"max_new_tokens": 12, "minutes": 0.1, "clock": lambda: 0.0, **options})


def test_every_setting_is_screened_where_there_is_time_and_the_best_are_run(tmp_path: Path) -> None:
    heard: list[Trial] = []
    tuning = tuner("jacobi:noise_aware=false").run(heard.append)
    assert sorted(trial.strategy for trial in tuning.trials) == sorted(
        f"jacobi:noise_aware=false,n={n}" for n in (1, 2, 3, 4, 6, 8, 12, 16)
    )
    assert {trial.strategy for trial in heard} == {trial.strategy for trial in tuning.trials}
    for trial in tuning.trials:  # screened once, or once more
        samples = [sample for sample in heard if sample.strategy == trial.strategy]
        assert trial.num_steps == sum(sample.num_steps for sample in samples)
        assert trial.tokens_per_step == sum(sample.num_tokens for sample in samples) / trial.num_steps
    speeds = [
        trial.tokens_per_step / (tuning.costs.at(trial.nodes_per_step) + trial.host_seconds / trial.num_steps)
        for trial in tuning.trials
    ]
    assert speeds == sorted(speeds, reverse=True)
    finalists = list(tuning.comparison.plan.strategies)
    plain = ["autoregressive", "autoregressive (exact)"]
    assert finalists == [*(trial.strategy for trial in tuning.trials[: len(finalists) - 2]), *plain]
    assert [tuning.comparison.plan.numerics[name] for name in plain] == ["fast", "exact"]
    assert not any(tuning.comparison.plan.inexact[name] for name in finalists[:-2])
    assert tuning.strategy in finalists
    assert tuning.gain == tuning.comparison.speed_up(tuning.strategy)
    assert tuning.gain.value == max(tuning.comparison.speed_up(name).value for name in finalists[:-2])
    for name in ("plot.svg", "plot.png"):
        save_trade_off(tmp_path / name, tuning)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def searched(space: SearchSpace, speed: Callable[[str], float]) -> list[str]:
    """Every setting in the order that they are screened in, where steps cost the same and bring this many tokens."""
    asked: list[str] = []

    def screen(strategy: str) -> Trial:
        asked.append(strategy)
        return Trial(strategy, int(1000 * speed(strategy)), 1000, 1000, 0.0)

    found = space.search(screen, Costs((1, 2), (1.0, 1.0), 1.0), lambda: True)
    assert [trial.strategy for trial in found] == asked
    return asked


def test_the_fastest_setting_is_among_the_first_that_are_screened_wherever_it_lies() -> None:
    space = SearchSpace("lookahead", {})
    for fastest in list(space._places)[::9]:
        asked = searched(space, lambda setting, best=fastest: 20 - space._distance(setting, best))  # type: ignore[misc]
        assert sorted(asked) == sorted(space._places)  # each once
        assert asked.index(fastest) < 30


def test_a_search_screens_the_same_settings_each_time() -> None:
    first, again = (searched(SearchSpace("prompt_lookup", {}), len) for _ in range(2))
    assert first == again


def test_a_value_that_is_given_twice_is_tried_once() -> None:
    assert sorted(searched(SearchSpace("jacobi", {"n": [2, 3, 2]}), len)) == ["jacobi:n=2", "jacobi:n=3"]


def test_a_space_of_ones_own_replaces_the_strategys() -> None:
    tuning = tuner("lookahead:N=3", space={"W": [2, 3], "G": [1]}).run()  # N stays, W and G are given
    assert {trial.strategy for trial in tuning.trials} == {"lookahead:N=3,W=2,G=1", "lookahead:N=3,W=3,G=1"}


def test_settings_that_the_strategy_refuses_are_left_out_and_counted() -> None:
    space = {"max_ngram": [1, 3], "min_ngram": [1, 2], "num_tokens": [2], "num_matches": [1]}
    tuning = tuner("prompt_lookup", space=space).run()
    assert len(tuning.trials) == 3
    assert tuning.num_refused == 1


def test_in_fast_numerics_nothing_else_is_run() -> None:
    tuning = tuner("jacobi", space={"n": [2]}, numerics="fast").run()
    assert list(tuning.comparison.plan.strategies) == ["jacobi:n=2", "autoregressive"]
    assert tuning.costs.plain == tuning.costs.seconds[0]


def test_when_time_is_short_something_is_still_found() -> None:
    tuning = tuner("lookahead", minutes=0.001, clock=itertools.count().__next__).run()
    assert len(tuning.trials) == 1
    assert tuning.strategy == tuning.trials[0].strategy


@pytest.mark.parametrize(
    ("strategy", "options", "fault"),
    [
        ("autoregressive", {}, "autoregressive declares no values to tune"),
        ("jacobi:n=3", {}, "'jacobi:n=3' fixes all options that tune would vary"),
        ("jacobi:n=3", {"space": {"n": [1, 2]}}, "leave it out of 'jacobi:n=3'"),
        ("jacobi", {"space": {"n": []}}, "option n: give at least one value"),
        ("jacobi", {"space": {"n": [0]}}, "n"),
        ("jacobi", {"space": {"m": [1]}}, "m"),
        ("jacoby", {}, "unknown proposer 'jacoby'"),
        ("jacobi", {"minutes": 0}, "minutes=0: it must be positive"),
        ("jacobi", {"minutes": float("nan")}, "must be positive"),
        ("jacobi", {"minutes": float("inf")}, "and finite"),
    ],
)
def test_what_cant_be_searched_is_refused(strategy: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(SpecdecError, match=fault):
        tuner(strategy, **options)


def tuned(speeds: dict[str, float], num_prompts: int = 6, wrong: Sequence[str] = ()) -> str:
    """Sentences on a search whose finalists were so many times as fast as plain decoding on every prompt."""
    comparison = build(speeds, num_prompts=num_prompts, wrong=wrong)
    first = comparison.drafting[0]
    return "\n".join(found_by_search(Tuning(first.strategy, first.speed_up, (), 0, comparison, COSTS)))


def test_the_setting_is_called_best_only_where_its_interval_lies_above_1() -> None:
    assert tuned({"a": 2.0}) == "best: --proposer a   2.00 [2.00, 2.00] times plain decoding"
    for speeds, num_prompts, why in (
        ({"a": 0.8}, 6, "its interval lies below 1"),
        ({"a": 1.0}, 6, "its interval contains 1"),
        ({"a": 2.0}, 5, "fewer than 6 prompts give no interval"),
    ):
        told = tuned(speeds, num_prompts)
        assert "best" not in told
        assert told.startswith("fastest finalist: --proposer a ")
        assert f"No setting is certainly faster than plain decoding in fast numerics: {why}." in told


def test_a_setting_that_writes_another_text_is_never_the_best() -> None:
    told = tuned({"a": 2.0}, wrong=["a"])
    assert told == "fastest finalist: --proposer a   2.00 [2.00, 2.00] times plain decoding"


def test_settings_that_the_best_is_not_told_apart_from_are_named() -> None:
    assert tuned({"a": 2.0, "b": 2.0, "c": 1.5}).endswith(
        "of 3 in the same runs, its figure is slightly biased upward; possibly as fast: b."
    )
    assert tuned({"a": 2.0, "c": 1.5}).endswith(
        "As the fastest of 2 in the same runs, its figure is slightly biased upward."
    )
