"""The measurement of the self-test: what it counts as found, and what it prints."""

from dataclasses import replace

import pytest

from benchmarks.exactness.selftest import table
from benchmarks.exactness.selftest_cases import Case, Outcome, measure
from specdec.runtime.probes import selftest


def test_a_small_model_is_taken_and_every_mistake_found() -> None:
    outcomes = measure(Case("llama", 2, "bfloat16", True))
    assert [outcome.found for outcome in outcomes if not outcome.mistake] == ["trees"] * 3
    assert [outcome.label for outcome in outcomes if outcome.is_bad] == []
    assert table(outcomes).splitlines()[-1] == "| llama | 2 | trees 24/24 |"


def test_a_self_test_that_allows_too_much_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_MOST_NOISE", 1e6)
    missed = {outcome.mistake for outcome in measure(Case("llama", 2, "bfloat16", True)) if outcome.is_bad}
    assert {"keys one slot late", "another branch kept"} <= missed


def test_models_whose_own_code_fails_are_skipped_with_the_reason() -> None:
    (outcome,) = measure(Case("mixtral", 2, "float64", False))
    assert (outcome.found, outcome.is_bad) == ("skipped", False)
    assert "RuntimeError" in outcome.said


def test_what_is_missed_shows_in_the_table_and_by_name() -> None:
    case = Case("llama", 2, "float32", True)
    right = Outcome(case, "DenseCompiler", "", "trees", "", 0.0)
    found = replace(right, mistake="position +1", found="fault")
    missed = replace(right, mistake="position -1", found="missed")
    assert table([right, found, missed]).splitlines()[-1] == "| llama | 2 | trees 1/2 |"
    assert missed.label.startswith("missed: position -1: llama, 2 layers, float32, with spikes, DenseCompiler")
