"""Costs of passes, measured in a moment."""

import pytest

from tests.support.brief_costs import measure_briefly


@pytest.fixture(autouse=True)
def _brief_costs_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)
