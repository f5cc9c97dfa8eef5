"""Comparing real generators: figures by phase, planted faults, interrupts."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from specdec import (
    ROOT,
    Budget,
    Drafter,
    DraftModelProposer,
    DraftTree,
    Generator,
    Proposer,
    Request,
    RequestError,
    SpecdecError,
    ToyModel,
    compare,
)
from specdec.apps.comparison import ComparisonSession, EvaluationPrompt
from specdec.apps.comparison.runfile import read
from specdec.apps.comparison.runs import Run
from specdec.apps.comparison.ties import ScoredText
from specdec.runtime.probes.walk import SelfTestResult
from specdec.sampling.randomness import seed_of_sample
from specdec.verifiers.base import Verdict
from specdec.verifiers.match import MatchVerifier
from tests.support import families

MODEL = ToyModel.random(8, order=2, seed=3, sharpness=4.0)
PROMPTS = [[1, 2, n, *([4, 5] if n == 3 else [])] for n in range(6)]  # prompt 3 is the longest
FEW: dict[str, Any] = {"max_new_tokens": 12}


class WrongOnce(MatchVerifier):
    """Match, but for the token at position 16, which only prompt 3 comes to: its last."""

    def verify(self, tree: DraftTree, target: Any, randomness: Any) -> Verdict:
        verdict = super().verify(tree, target, randomness)
        place = 16 - target.position(ROOT)
        tokens = [(token + (index == place)) % 8 for index, token in enumerate(verdict.tokens)]
        return Verdict(verdict.path, tuple(tokens))


class Idle(Proposer):
    """Proposes nothing, and takes its time over it."""

    seconds: float = 0.002

    def start(self, request: Request) -> Drafter:
        return _Idle(request, self.seconds)


class _Idle(Drafter):
    def __init__(self, request: Request, seconds: float) -> None:
        super().__init__(request)
        self._seconds = seconds

    def propose(self, budget: Budget) -> DraftTree:
        time.sleep(self._seconds)
        return DraftTree(self.request.root)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_strategies_agree_with_plain_decoding_which_is_added(temperature: float) -> None:
    comparison = compare(
        MODEL, {"lookup": "prompt_lookup", "jacobi": "jacobi:n=3"}, PROMPTS, temperature=temperature, seed=5, **FEW
    )
    assert list(comparison.plan.strategies) == ["lookup", "jacobi", "autoregressive", "autoregressive (exact)"]
    assert comparison.is_complete
    assert len(comparison.runs) == 4 * 6 * 3
    assert [row.num_different for row in comparison.rows] == [0, 0, 0, 0]
    plain = Generator(MODEL, proposer="autoregressive")
    for run in comparison.runs:
        seed = seed_of_sample(5, run.repeat)
        alone = plain.generate(PROMPTS[run.prompt], temperature=temperature, seed=seed, **FEW)
        assert run.tokens == alone.token_ids
    assert comparison.rows[2].tokens_per_step == 1.0


def test_time_spent_in_propose_shows_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of its own, on which sleep and nothing else takes time."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-6  # or texts would take no time at all
        return now[0]

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    comparison = compare(MODEL, {"idle": Idle()}, PROMPTS[:2], repeats=1, **FEW)
    seconds = comparison.rows[0].seconds
    assert seconds["propose"] >= 0.002
    assert comparison.rows[1].seconds["propose"] < 0.002


def test_a_planted_wrong_token_is_found_with_prompt_position_and_margin() -> None:
    wrong = Generator(MODEL, proposer="jacobi", verifier=WrongOnce())
    comparison = compare(MODEL, {"wrong": wrong}, PROMPTS, repeats=1, **FEW)
    (found,) = comparison.differences
    plain = Generator(MODEL, proposer="autoregressive").generate(PROMPTS[3], **FEW).token_ids
    assert (found.strategy, found.prompt, found.position) == ("wrong", 3, 11)
    assert (found.expected, found.token) == (plain[11], (plain[11] + 1) % 8)
    law = MODEL.probs((*PROMPTS[3], *plain[:11]))
    assert found.margin == pytest.approx(math.log(law[plain[11]] / law[(plain[11] + 1) % 8]))


def test_a_lossy_strategy_is_marked_and_the_others_are_still_checked() -> None:
    with pytest.warns(UserWarning, match="lossy"):
        lossy = Generator(MODEL, proposer="jacobi", verifier="typical")
    comparison = compare(MODEL, {"lossy": lossy, "a": "jacobi"}, PROMPTS, temperature=1.0, repeats=1, **FEW)
    plain = dict.fromkeys(["autoregressive", "autoregressive (exact)"], "tokens")
    assert comparison.plan.promises == {"lossy": "nothing", "a": "tokens", **plain}
    assert [row.num_different for row in comparison.rows] == [None, 0, 0, 0]


def test_a_list_of_strategies_is_refused_with_an_example() -> None:
    given: Any = ["lookahead"]
    with pytest.raises(RequestError, match=r"strategies=\['lookahead'\]: give a mapping of names to strategies"):
        ComparisonSession(MODEL, given, PROMPTS)


def test_a_plan_names_the_models_that_strategies_bring() -> None:
    drafter = ToyModel.random(8, seed=1)
    plan = ComparisonSession(MODEL, {"a": DraftModelProposer(model=drafter), "b": "jacobi:n=2"}, PROMPTS).plan
    assert plan.strategies["a"].endswith("model=ToyModel")
    assert plan.strategies["b"] == "JacobiProposer(n=2, noise_aware=True)"
    assert plan.verifiers["a"] == "MatchVerifier()"


def test_a_rule_that_promises_the_law_alone_is_not_held_to_the_tokens() -> None:
    comparison = compare(MODEL, {"a": "jacobi"}, PROMPTS, verifier="rejection", temperature=1.0, repeats=1, **FEW)
    assert [row.num_different for row in comparison.rows] == [None, 0, 0]
    greedy = compare(MODEL, {"a": "jacobi"}, PROMPTS, verifier="rejection", repeats=1, **FEW)
    assert [row.num_different for row in greedy.rows] == [0, 0, 0]


class Failing(Idle):
    """Fails on prompt 3, the longest."""

    seconds: float = 0.0

    def start(self, request: Request) -> Drafter:
        if request.prompt_length == 5:
            raise ZeroDivisionError("by nought")
        return super().start(request)


def test_a_strategy_that_fails_ends_it_with_the_figures_of_what_was_run(tmp_path: Path) -> None:
    comparison = ComparisonSession(MODEL, {"a": Failing()}, PROMPTS, repeats=1, seed=1, **FEW).run()
    assert "strategy 'a' failed on prompt 'prompt 3'" in str(comparison.failure)
    assert not comparison.is_complete
    with pytest.raises(SpecdecError, match="by nought"):
        compare(MODEL, {"a": Failing()}, PROMPTS, repeats=1, seed=1, run_file=str(tmp_path / "run.jsonl"), **FEW)
    assert len(read(tmp_path / "run.jsonl")[1]) == len(comparison.runs)


def test_an_interrupt_keeps_what_was_run_and_a_run_file_goes_on_from_there(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    seen: list[Run] = []

    def interrupt(run: Run) -> None:
        seen.append(run)
        if len(seen) == 7:
            raise KeyboardInterrupt

    session = ComparisonSession(MODEL, {"a": "jacobi"}, PROMPTS, repeats=1, **FEW)
    assert not any(made._huge_pages for made in session.generators.values()), "one would slow down another's run"
    comparison = session.run(path, on_run=interrupt)
    assert not comparison.is_complete
    assert len(comparison.pairs) == 2
    assert read(path)[1] == seen
    more: list[Run] = []
    whole = ComparisonSession(MODEL, {"a": "jacobi"}, PROMPTS, repeats=1, **FEW).run(path, on_run=more.append)
    assert whole.is_complete
    assert read(path)[1] == seen + more
    assert len(more) == 18 - 7


def test_an_interrupt_before_there_is_anything_to_compare_is_passed_on() -> None:
    def interrupt(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ComparisonSession(MODEL, {"a": "jacobi"}, PROMPTS, **FEW).run(on_run=interrupt)


def test_a_limit_in_seconds_ends_it_when_every_strategy_has_run_a_prompt() -> None:
    comparison = ComparisonSession(MODEL, {"a": "jacobi"}, PROMPTS, repeats=50, **FEW).run(seconds=0.0)
    assert len(comparison.runs) == 3


@pytest.mark.parametrize(
    ("strategies", "prompts", "options", "fault"),
    [
        ({"a": "jacobi"}, [], {}, "there are no prompts"),
        ({"a": "jacoby"}, PROMPTS, {}, "unknown proposer 'jacoby': did you mean jacobi"),
        ({"a": "jacobi"}, PROMPTS, {"repeats": 0}, "repeats=0: input should be greater than or equal to 1"),
        ({"a": "jacobi"}, [[1], []], {}, "prompt 'prompt 1' .prompts.: the prompt is empty"),
        ({"a": "jacobi"}, [[1], [99]], {}, "prompt 'prompt 1' .prompts.: .* is 99, but ids go from 0 to 7"),
        ({"autoregressive": "jacobi"}, PROMPTS, {}, "'autoregressive' is plain decoding's"),
        ({"autoregressive (exact)": "jacobi"}, PROMPTS, {}, "'autoregressive .exact.' is plain decoding's"),
        ({"a": "jacobi"}, PROMPTS, {"numerics": "good"}, "numerics='good': it must be one of auto, exact, fast"),
        ({"a": "jacobi"}, PROMPTS, {"max_new_tokens": 0}, "max_new_tokens"),
        ({"a": "jacobi"}, PROMPTS, {"seed": -1}, "seed"),
        ({"a": "jacobi"}, [1, 2, 3], {}, "prompts is a single prompt: pass a list"),
        ({"a": "jacobi"}, "text", {}, "prompts is a single prompt: pass a list"),
        ({"a": Generator(ToyModel.random(8), proposer="jacobi")}, PROMPTS, {}, "'a' is a generator of another model"),
        ({"a": "jacobi"}, PROMPTS, {"logits_processor": [print]}, "can't have logits_processor"),
        ({"a": "jacobi"}, PROMPTS, {"stopping_criteria": [print]}, "can't have stopping_criteria"),
    ],
)
def test_what_cant_be_compared_is_refused_before_anything_runs(
    strategies: dict[str, Any], prompts: Any, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(SpecdecError, match=fault):
        ComparisonSession(MODEL, strategies, prompts, **options)


FAST = "fast numerics don't promise it"


@pytest.mark.parametrize("numerics", ["auto", "exact"])
def test_exact_texts_are_held_against_exact_plain_decoding_and_speed_against_fast(
    numerics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Generator(MODEL, proposer="jacobi", verifier=WrongOnce(), numerics="exact")
    session = ComparisonSession(MODEL, {"wrong": wrong, "good": "jacobi"}, PROMPTS, repeats=1, numerics=numerics, **FEW)
    plan = session.plan
    assert (plan.baseline, plan.reference) == ("autoregressive", "autoregressive (exact)")
    assert plan.numerics == dict.fromkeys(["wrong", "good", plan.reference], "exact") | {plan.baseline: "fast"}
    assert plan.inexact == dict.fromkeys(["wrong", "good", plan.reference], "") | {plan.baseline: FAST}
    asked: list[str] = []
    decode = ScoredText.decode

    def noting(generator: Generator, *given: Any) -> ScoredText:
        asked.append(generator.numerics.mode)
        return decode(generator, *given)

    monkeypatch.setattr(ScoredText, "decode", noting)
    comparison = session.run()
    assert [(found.strategy, found.prompt, found.position) for found in comparison.differences] == [("wrong", 3, 11)]
    assert comparison.differences[0].margin is not None
    assert asked == ["exact"]
    assert comparison.speed_up("good") == comparison.speed_up("good", over="autoregressive")
    assert comparison.speed_up(plan.baseline).value == 1.0


def test_in_fast_numerics_plain_decoding_is_there_once() -> None:
    plan = ComparisonSession(MODEL, {"a": "jacobi"}, PROMPTS, numerics="fast", **FEW).plan
    assert plan.numerics == {"a": "fast", "autoregressive": "fast"}
    assert plan.reference == plan.baseline == "autoregressive"


@pytest.mark.parametrize(
    ("strategies", "numerics", "baseline", "reference", "names"),
    [
        ({}, "auto", "autoregressive", "autoregressive (exact)", []),
        ({}, "fast", "autoregressive", "autoregressive", []),
        ({"p": "autoregressive", "a": "jacobi"}, "auto", "p", "p (exact)", ["a"]),
        ({"p": "autoregressive", "q": "autoregressive"}, "auto", "p", "q", []),
        ({"p": ("autoregressive", "exact"), "a": "jacobi"}, "auto", "autoregressive", "p", ["a"]),
        ({"autoregressive": ("autoregressive", "exact")}, "auto", "autoregressive (fast)", "autoregressive", []),
        ({"p": ("autoregressive", "fast")}, "auto", "p", "p (exact)", []),
        ({"a": ("jacobi", "fast")}, "auto", "autoregressive", "autoregressive", ["a"]),
        ({"a": ("jacobi", "exact"), "b": "jacobi"}, "fast", "autoregressive", "autoregressive (exact)", ["a", "b"]),
    ],
)
def test_plain_decoding_is_added_in_whichever_numerics_it_is_missing(
    strategies: dict[str, Any], numerics: Any, baseline: str, reference: str, names: list[str]
) -> None:
    given = {
        name: made if isinstance(made, str) else Generator(MODEL, proposer=made[0], numerics=made[1])
        for name, made in strategies.items()
    }
    plan = ComparisonSession(MODEL, given, PROMPTS, numerics=numerics, **FEW).plan
    assert (plan.baseline, plan.reference) == (baseline, reference)
    assert [name for name in plan.strategies if name not in plan.plain] == names
    assert (plan.numerics[baseline], plan.inexact[baseline]) == ("fast", FAST)


def test_each_strategy_is_held_against_plain_decoding_in_its_own_numerics() -> None:
    fast = Generator(MODEL, proposer="jacobi", numerics="fast")
    plan = ComparisonSession(MODEL, {"fast": fast, "exact": "jacobi"}, PROMPTS, **FEW).plan
    held = {name: plan.reference_of(name) for name in plan.strategies}
    assert held == {
        "fast": "autoregressive",
        "autoregressive": "autoregressive",
        "exact": "autoregressive (exact)",
        "autoregressive (exact)": "autoregressive (exact)",
    }


def test_where_exact_numerics_cant_be_had_the_plan_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SelfTestResult(inexact="logits in a tree of 2 nodes have other bits than in plain steps", noise=1.0)
    monkeypatch.setattr("specdec.runtime.probes.walk.Walk.result", lambda _: found)
    model = ToyModel.random(8, order=2, seed=3)
    plan = ComparisonSession(model, {"a": "jacobi"}, PROMPTS, **FEW).plan
    assert plan.reference == plan.baseline == plan.reference_of("a")
    assert plan.numerics["a"] == "fast"
    assert plan.model["engine"] == "decoded with toy"
    assert plan.inexact["a"].startswith("exact numerics are unavailable: logits in a tree of 2")
    for strategies in ({}, {"a": "jacobi"}):
        with pytest.raises(SpecdecError, match="numerics='exact' is unavailable here: "):
            ComparisonSession(model, strategies, PROMPTS, numerics="exact", **FEW)


def test_the_plan_names_the_backend_that_torch_runs() -> None:
    model = families.make(*families.TREES["llama"])
    given: dict[str, Any] = {"proposer": "autoregressive", "numerics": "fast", "weights": "stock"}
    for backend, engine in (("hf", "torch"), ("static", "static (torch)")):
        plan = ComparisonSession(model, {"plain": Generator(model, backend=backend, **given)}, [[3]], **FEW).plan
        assert plan.model["engine"].startswith(f"decoded with {engine}, weights stock: ")


def test_prompts_keep_their_category_and_name() -> None:
    prompts = [EvaluationPrompt("verse", "one", [1]), EvaluationPrompt("prose", "two", [2]), [3]]
    plan = ComparisonSession(MODEL, {}, prompts, **FEW).plan
    assert plan.prompts == (("verse", "one", (1,)), ("prose", "two", (2,)), ("prompts", "prompt 2", (3,)))
