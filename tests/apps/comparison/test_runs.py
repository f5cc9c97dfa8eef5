"""The measurement, its order, and its files: what was run is kept, and never run twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specdec import RequestError, Result
from specdec.apps.comparison import Comparison
from specdec.apps.comparison.runfile import RunFile, merge, read
from specdec.apps.comparison.runs import ComparisonPlan, Run, measure
from specdec.decoding.stats import Stats
from specdec.numerics import Numerics
from specdec.sampling.randomness import seed_of_sample
from tests.apps.comparison.made import TEXT, plan_of, run_of, runs_of


class Bench:
    """Strategies that take a second each by a clock of their own, and remember what they were asked."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, int, int]] = []
        self.decoders = {name: self._decoder(name) for name in plan.strategies}

    def _decoder(self, name: str) -> Any:
        def decode(prompt: int, seed: int) -> Result:
            self.asked.append((name, prompt, seed))
            self.now += 1.0
            return Result(TEXT, None, "length", Stats(accepted_lengths=[len(TEXT)]), seed, Numerics("fast"))

        return decode

    def clock(self) -> float:
        return self.now


def test_every_strategy_decodes_every_prompt_in_a_random_order_interleaved() -> None:
    plan = plan_of(["plain", "a", "b"], num_prompts=4, repeats=5, seed=7)
    bench = Bench(plan)
    runs = list(measure(plan, bench.decoders, clock=bench.clock))
    assert {run.seconds for run in runs} == {1.0}
    assert Counter(run.key for run in runs) == Counter(run.key for run in runs_of(plan, lambda *_: 0.0))
    warm_up, counted = bench.asked[:3], bench.asked[3:]
    assert [name for name, *_ in warm_up] == list(plan.strategies)
    assert [seed for _, _, seed in counted] == [seed_of_sample(7, run.repeat) for run in runs]
    blocks = [counted[start : start + 3] for start in range(0, len(counted), 3)]
    assert all(len({prompt for _, prompt, _ in block}) == 1 for block in blocks)  # all strategies, one after another
    assert len({tuple(name for name, *_ in block) for block in blocks}) >= 4  # of 6 orders, in 20 blocks
    again = Bench(plan)
    assert [run.key for run in measure(plan, again.decoders)] == [run.key for run in runs]


def test_a_warm_memory_is_filled_by_a_pass_that_no_repeat_draws_like_and_that_isnt_counted() -> None:
    plan = plan_of(["plain", "a", "a (warm)"], num_prompts=4, repeats=2, seed=7)
    bench, emptied = Bench(plan), list[int]()
    runs = list(measure(plan, bench.decoders, forget=lambda: emptied.append(len(bench.asked))))
    assert bench.asked[3:7] == [("a (warm)", prompt, seed_of_sample(7, 2)) for prompt in range(4)]
    assert emptied == [7, 7 + 12]  # behind all that isn't counted, and between the repeats
    assert Counter(run.key for run in runs) == Counter(run.key for run in runs_of(plan, lambda *_: 0.0))
    again = Bench(plan)
    done = {run.key for run in runs if run.strategy == "a (warm)"}
    list(measure(plan, again.decoders, done))
    assert again.asked.count(("a (warm)", 3, seed_of_sample(7, 2))) == 0  # all of it is done
    done.remove(("a (warm)", 3, 1))
    list(measure(plan, again.decoders, done))
    assert again.asked.count(("a (warm)", 3, seed_of_sample(7, 2))) == 1


def test_what_is_done_is_not_run_again() -> None:
    plan = plan_of(["plain", "a"], num_prompts=2, repeats=2)
    done = {("a", 0, 0), ("plain", 1, 1)}
    left = [run.key for run in measure(plan, Bench(plan).decoders, done)]
    assert len(left) == 6
    assert not done & set(left)


def test_a_strategy_that_fails_is_named_with_the_prompt() -> None:
    plan = plan_of(["plain", "a"], num_prompts=2)
    decoders = Bench(plan).decoders

    def fail(prompt: int, seed: int) -> Result:
        raise ZeroDivisionError("by nought")

    with pytest.raises(RequestError, match="strategy 'a' failed on prompt 'prompt 0': by nought"):
        list(measure(plan, decoders | {"a": fail}))


def test_a_run_file_gives_back_what_was_put_in_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    plan = plan_of(["plain", "a"], num_prompts=2, repeats=2)
    runs = runs_of(plan, lambda _, prompt, repeat: 0.1 + prompt + repeat)
    path = tmp_path / "run.jsonl"
    for part in (runs[:3], runs[3:]):
        file = RunFile(path, plan)
        for run in part:
            file.add(run)
        file.close()
    assert read(path) == (plan, runs)


def test_why_numerics_are_inexact_is_measured_and_may_be_told_otherwise_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    RunFile(path, plan_of(["plain"], 2)).close()
    RunFile(path, plan_of(["plain"], 2, inexact={"plain": "made by hand again"})).close()
    assert read(path)[0].inexact == {"plain": "made by hand again"}


def test_a_line_that_was_cut_off_is_run_again_and_the_rest_kept(tmp_path: Path) -> None:
    plan = plan_of(["plain"], num_prompts=3)
    runs = runs_of(plan, lambda *_: 1.0)
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([plan.model_dump_json(), *(run.model_dump_json() for run in runs)])[:-20])
    file = RunFile(path, plan)
    assert file.runs == runs[:2]
    file.add(runs[2])
    file.close()
    assert read(path) == (plan, runs)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"settings": {"temperature": 1.0}}, "its settings is"),
        ({"model": {"model": "another"}}, "its model is"),
        ({"numerics": {"plain": "exact"}}, "its numerics is"),
    ],
)
def test_a_run_file_of_another_comparison_is_refused_and_left_alone(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    path = tmp_path / "run.jsonl"
    RunFile(path, plan_of(["plain"], 2)).close()
    before = path.read_bytes()
    with pytest.raises(RequestError, match=fault):
        RunFile(path, plan_of(["plain"], 2, **changes))
    assert path.read_bytes() == before


def test_files_of_one_comparison_are_merged_as_further_repeats(tmp_path: Path) -> None:
    plan = plan_of(["plain", "a"], num_prompts=6, repeats=1)
    paths = []
    for index, seconds in enumerate((1.0, 3.0, 2.0)):
        paths.append(tmp_path / f"{index}.jsonl")
        file = RunFile(paths[-1], plan)
        for run in runs_of(plan, lambda name, *_: 4.0 if name == "plain" else seconds):  # noqa: B023
            file.add(run)
        file.close()
    merged, runs = merge(paths)
    assert merged.repeats == 3
    assert {run.repeat for run in runs} == {0, 1, 2}
    assert Comparison(merged, runs).speed_up("a").value == 2.0  # the median repeat


@pytest.mark.parametrize("text", ["", "{}\n", "not JSON\n"])
def test_a_file_that_is_no_run_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"run\.jsonl is not a run file"):
        read(path)


@pytest.mark.parametrize("missing", ["reference", "numerics", "inexact"])
def test_a_file_from_before_numerics_were_kept_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(plan_of(["plain"], 1).model_dump_json(exclude={missing}) + "\n")
    with pytest.raises(RequestError, match="is not a run file: "):
        read(path)


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run: Run = run_of("plain", 0, 0, 1.0)
    path.write_text("\n".join([plan_of(["plain"], 1).model_dump_json(), "{}", run.model_dump_json()]))
    with pytest.raises(RequestError, match="line 2 is not a run"):
        read(path)
