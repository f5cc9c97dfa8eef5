"""Comparisons that measure the costs of passes in a moment: no text depends on them."""

from functools import partial

import pytest

from specdec.runtime.probes.costs import measure_costs


def measure_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons and searches measure one round of passes in place of nine."""
    brief = partial(measure_costs, repeats=1, seconds=0.1)
    monkeypatch.setattr("specdec.apps.comparison.session.measure_costs", brief)
