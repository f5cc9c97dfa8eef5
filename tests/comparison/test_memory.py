"""Strategies that remember earlier requests: emptied before each repeat, or compared as warm ones by name."""

from specdec import ToyModel, compare


def test_no_repeat_profits_from_the_texts_of_the_last_unless_its_row_says_so() -> None:
    model = ToyModel.random(6, sharpness=3.0)
    comparison = compare(
        model, {"auto": "auto:clock=false"}, [[1, 2, 3], [4, 4], [5, 1]], repeats=3, warm=True, max_new_tokens=60
    )
    steps = {
        name: [
            sum(len(run.accepted_lengths) for run in comparison.runs if (run.strategy, run.repeat) == (name, repeat))
            for repeat in range(3)
        ]
        for name in ("auto", "auto (warm)")
    }
    cold, warm = steps["auto"], steps["auto (warm)"]
    assert max(warm[1:]) < min(cold)
    assert max(cold) <= 1.5 * min(cold)  # the order of prompts differs


def test_a_row_is_added_for_strategies_that_remember_alone() -> None:
    comparison = compare(ToyModel.random(6), {"a": "auto", "b": "jacobi"}, [[1, 2]], repeats=1, warm=True)
    assert {name for name in comparison.plan.strategies if "autoregressive" not in name} == {"a", "b", "a (warm)"}
