"""Figures of a comparison, against sums done by hand."""

import csv
import io
import json
from collections.abc import Sequence

import pytest

from specdec import RequestError
from specdec.apps.comparison import Comparison
from specdec.apps.comparison.runs import ComparisonPlan
from tests.apps.comparison.made import TEXT, plan_of, run_of, runs_of


def made(seconds: dict[str, float], num_prompts: int = 8, repeats: int = 3) -> Comparison:
    """Each strategy takes its seconds for every prompt, give or take a hundredth."""
    plan = plan_of(list(seconds), num_prompts, repeats)
    return Comparison(plan, runs_of(plan, lambda name, prompt, _: seconds[name] * (1 + 0.01 * (prompt % 3))))


def test_speeds_and_rows() -> None:
    plan = plan_of(["plain", "a"], num_prompts=2)
    runs = [
        run_of("plain", 0, 0, 2.0),
        run_of("plain", 1, 0, 4.0),
        run_of("a", 0, 0, 1.0, accepted=(4, 2)),
        run_of("a", 1, 0, 1.0, accepted=(2, 2, 2)),
    ]
    comparison = Comparison(plan, runs)
    row = comparison.rows[1]
    assert row.tokens_per_second == 2 * len(TEXT) / 2.0
    assert row.tokens_per_step == 12 / 5
    assert row.nodes_per_step == 3.0
    assert row.speed_up.value == 3.0
    assert row.seconds["forward"] == pytest.approx(2.0 / 5 / 5)
    assert (row.num_texts, row.num_different, row.cache_bytes) == (2, 0, 2**20)
    assert comparison.speed_up("a", category="odd").value == 4.0
    assert comparison.tokens_per_step("a", category="even") == 3.0
    assert comparison.categories == ["even", "odd"]


def test_what_a_terminal_shows_fits_it_and_says_what_matters() -> None:
    long = "prompt_lookup:" + ",".join(f"option_{letter}=1" for letter in "abcdef")
    shown = repr(made({"plain": 2.0, "a": 1.0, long: 1.5})).splitlines()
    assert shown[0] == "Comparison of 8 prompts, 3 repeats"
    assert [line.split()[0][:10] for line in shown[2:5]] == ["a", "prompt_loo", "plain"]
    assert "2.00 [" in shown[2]
    assert shown[-1] == "  texts that differ from plain decoding's: 0, and 0 at numeric ties"
    assert max(map(len, shown)) <= 80


def test_the_winner_must_beat_every_other() -> None:
    assert made({"plain": 2.0, "a": 1.0, "b": 1.5}).winner == "a"
    assert made({"plain": 2.0, "a": 1.0, "b": 1.0}).winner is None
    assert made({"plain": 1.0, "a": 2.0}).winner == "plain"
    assert made({"plain": 2.0, "a": 1.0}, num_prompts=5).winner is None  # too few prompts for an interval


def test_only_prompts_that_every_strategy_has_run_are_counted() -> None:
    plan = plan_of(["plain", "a", "b"], num_prompts=2)
    runs = [*(run_of(name, 0, 0, 1.0) for name in ("plain", "a", "b")), run_of("plain", 1, 0, 1.0)]
    comparison = Comparison(plan, [*runs, run_of("a", 1, 0, 9.0)])
    assert comparison.rows[1].tokens_per_second == len(TEXT)
    assert not comparison.is_complete
    with pytest.raises(RequestError, match="nothing to compare yet"):
        Comparison(plan, runs[1:])


@pytest.mark.parametrize(
    ("tokens", "place", "token", "expected"),
    [((5, 6, 99, 8, 9, 10), 2, 99, 7), ((5, 6), 2, None, 7), ((*TEXT, 11), 6, 11, None), ((99,), 0, 99, 5)],
)
def test_the_first_difference_from_plain_decoding_is_found(
    tokens: tuple[int, ...], place: int, token: int | None, expected: int | None
) -> None:
    plan = plan_of(["plain", "a"], num_prompts=2)
    runs = [run_of("plain", 0, 0, 1.0), run_of("a", 0, 0, 1.0), run_of("plain", 1, 0, 1.0)]
    comparison = Comparison(plan, [*runs, run_of("a", 1, 0, 1.0, tokens)])
    (found,) = comparison.differences
    assert (found.strategy, found.prompt, found.position) == ("a", 1, place)
    assert (found.agreed, found.token, found.expected) == (TEXT[:place], token, expected)
    assert [row.num_different for row in comparison.rows] == [0, 1]
    by_law = Comparison(plan.model_copy(update={"promises": {"plain": "tokens", "a": "distribution"}}), comparison.runs)
    assert [row.num_different for row in by_law.rows] == [0, None]
    assert not by_law.differences


def exact(names: Sequence[str], num_prompts: int = 8, **changes: object) -> ComparisonPlan:
    """A plan in exact numerics but for ``plain``, and for strategies whose name begins with fast."""
    inexact = {name: "made fast" if name == "plain" or name.startswith("fast") else "" for name in names}
    numerics = {name: "fast" if why else "exact" for name, why in inexact.items()}
    return plan_of(names, num_prompts, reference="plain (exact)", numerics=numerics, inexact=inexact, **changes)


def test_a_tie_that_falls_the_other_way_in_fast_numerics_is_no_difference() -> None:
    fast, other = (*TEXT[:3], 70, 71, 72), (*TEXT[:5], 99)
    texts = {"plain": fast, "plain (exact)": TEXT, "a": TEXT, "wrong": other, "fast": fast, "fast wrong": TEXT}
    plan = exact(list(texts), num_prompts=1)
    comparison = Comparison(plan, [run_of(name, 0, 0, 1.0, tokens) for name, tokens in texts.items()])
    found = [(found.strategy, found.position, found.token, found.expected) for found in comparison.differences]
    assert found == [("wrong", 5, 99, 10), ("fast wrong", 3, 8, 70)]
    assert [row.num_different for row in comparison.rows] == [0, 0, 0, 1, 0, 1]


def test_speed_ups_are_over_fast_plain_decoding_and_the_reference_takes_no_part() -> None:
    seconds = {"a": 1.5, "plain": 2.0, "plain (exact)": 4.0}
    comparison = Comparison(exact(list(seconds)), runs_of(exact(list(seconds)), lambda name, *_: seconds[name]))
    assert [row.speed_up.value for row in comparison.rows] == pytest.approx([4 / 3, 1.0, 0.5])
    assert comparison.winner == "a"
    assert [row.strategy for row in comparison.possible_winners] == ["a", "plain"]
    assert [row.strategy for row in comparison.drafting] == ["a"]
    equal = {"a": 3.0, "plain": 2.0, "plain (exact)": 2.0}  # exact numerics cost nothing: plain decoding still wins
    assert Comparison(exact(list(equal)), runs_of(exact(list(equal)), lambda name, *_: equal[name])).winner == "plain"


def test_json_csv_and_records_have_every_run() -> None:
    comparison = made({"plain": 2.0, "a": 1.0})
    told = json.loads(json.dumps(comparison.to_json()))
    assert told["winner"] == "a"
    assert [entry["strategy"] for entry in told["strategies"]] == ["plain", "a"]
    assert told["strategies"][1]["speed_up"][0] == 2.0
    assert told["plan"]["reference"] == "plain"
    assert told["plan"]["numerics"] == {"plain": "fast", "a": "fast"}
    assert told["plan"]["inexact"] == {"plain": "made by hand", "a": "made by hand"}
    few = json.dumps(made({"plain": 2.0, "a": 1.0}, num_prompts=2).to_json(), allow_nan=False)
    assert json.loads(few)["strategies"][1]["speed_up"] == [2.0, None, None]
    lines = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert len(lines) == len(comparison.runs) == 48
    assert sum(float(line["seconds"]) for line in lines) == pytest.approx(sum(run.seconds for run in comparison.runs))
    records = comparison.to_records()
    assert [{name: str(figure) for name, figure in record.items()} for record in records] == lines
    for name in ("plain", "a"):
        assert sum(record["tokens"] for record in records if record["strategy"] == name) == 24 * len(TEXT)
