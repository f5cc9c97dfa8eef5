"""Each test of a probe runs it, whatever other tests found about the same models."""

import pytest


@pytest.fixture(autouse=True)
def _without_findings(no_findings: None) -> None:
    pass
