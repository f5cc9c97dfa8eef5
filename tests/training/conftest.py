"""Settings of all tests of training."""

import pytest


@pytest.fixture(autouse=True)
def trained_in_the_model_s_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run compute the same on all CPUs; whether they have bfloat16 instructions, a test says for itself."""
    monkeypatch.setattr("specdec.training.faster_copy.computes_in_bfloat16", lambda _: False)
