"""Windows on trial: fed while steps with them are the faster ones."""

import pytest

from specdec.strategies.merging.windows import Windows


@pytest.mark.parametrize(("tokens", "least", "most"), [(1.0, 0.0, 0.1), (1.5, 0.75, 0.97), (1.15, 0.1, 0.9)])
def test_the_faster_kind_is_had_most_of_the_time_and_the_other_is_tried(
    tokens: float, least: float, most: float
) -> None:
    """A window costs a seventh of a plain step, which brings one token."""
    windows, fed = Windows(), 0
    for step in range(4000):
        is_fed = windows.is_due()
        windows.note(is_fed, tokens if is_fed else 1.0, 1.15 if is_fed else 1.0)
        fed += is_fed if step >= 1000 else 0
    assert least < fed / 3000 <= most


def test_a_window_comes_back_when_the_text_changes() -> None:
    windows, fed = Windows(), list[bool]()
    for step in range(6000):
        fed.append(windows.is_due())
        tokens = 1.6 if fed[-1] and step >= 2000 else 1.0
        windows.note(fed[-1], tokens, 1.15 if fed[-1] else 1.0)
    assert sum(fed[1000:2000]) < 100
    assert sum(fed[4000:]) > 1500
