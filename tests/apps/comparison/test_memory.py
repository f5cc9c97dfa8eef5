"""Strategies that remember earlier requests: emptied before each repeat, or compared as warm ones by name."""

from typing import ClassVar

import pytest

from specdec import Budget, Drafter, DraftTree, Engine, Host, Proposer, Request, ToyModel, compare
from specdec.apps.comparison import ComparisonSession
from specdec.apps.comparison.runs import Run
from specdec.apps.comparison.sentences import warm_strategies


class Remembering(Proposer):
    """Proposes nothing; remembers the prompts of all requests, and notes what it remembers as each begins."""

    learns_across_requests: ClassVar[bool] = True

    def bind(self, host: Host) -> Engine:
        return _Memory()

    def start(self, request: Request) -> Drafter:
        return _Nothing(request)


class _Memory(Engine):
    noted: ClassVar[list[tuple["_Memory", tuple[int, ...], set[tuple[int, ...]]]]] = []

    def __init__(self) -> None:
        super().__init__(_Nothing)
        self._known: set[tuple[int, ...]] = set()

    def start(self, request: Request) -> Drafter:
        prompt = tuple(request.tokens[: request.prompt_length])
        self.noted.append((self, prompt, set(self._known)))
        self._known.add(prompt)
        return super().start(request)

    def forget(self) -> None:
        self._known = set()


class _Nothing(Drafter):
    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree(self.request.root)


PROMPTS = [[1, 2, 3], [4, 4], [5, 1]]
ALL = set(map(tuple, PROMPTS))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_cold_row_knows_no_prompt_before_its_turn_and_a_warm_one_knows_all(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(_Memory, "noted", [])
    counted: list[tuple[str, tuple[int, ...], set[tuple[int, ...]]]] = []

    def note(run: Run) -> None:
        if run.strategy.startswith("own"):
            _, prompt, known = _Memory.noted[-1]
            counted.append((run.strategy, prompt, known))

    options = {"repeats": 2, "warm": True, "max_new_tokens": 3, "temperature": temperature}
    with ComparisonSession(ToyModel.random(6), {"own": Remembering()}, PROMPTS, **options) as session:
        comparison = session.run(on_run=note)
    cold = [(prompt, known) for name, prompt, known in counted if name == "own"]
    warm = [(prompt, known) for name, prompt, known in counted if name == "own (warm)"]
    assert len(cold) == len(warm) == 2 * len(PROMPTS)
    for start in (0, len(PROMPTS)):  # of each repeat
        order = [prompt for prompt, _ in cold[start : start + len(PROMPTS)]]
        assert set(order) == ALL
        assert [known for _, known in cold[start : start + len(PROMPTS)]] == [
            set(order[:place]) for place in range(len(PROMPTS))
        ]
    assert all(known == ALL for _, known in warm)
    assert warm_strategies(comparison).startswith("Warm: own (warm) decoded every prompt once, uncounted")
    assert not warm_strategies(
        compare(ToyModel.random(6), {"own": Remembering()}, PROMPTS, repeats=1, max_new_tokens=3)
    )


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
    assert max(warm) < min(cold)
    assert max(cold) <= 1.5 * min(cold)  # the order of prompts differs


def test_a_row_is_added_for_strategies_that_remember_alone() -> None:
    comparison = compare(ToyModel.random(6), {"a": "auto", "b": "jacobi"}, [[1, 2]], repeats=1, warm=True)
    assert {name for name in comparison.plan.strategies if "autoregressive" not in name} == {"a", "b", "a (warm)"}
