"""Settings of all tests of training."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _trained_in_the_models_dtype() -> Iterator[None]:
    """Let a run compute the same on all CPUs; whether they have bfloat16 instructions, a test says for itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("specdec.heads.training.faster_copy.computes_in_bfloat16", lambda _: False)
        yield
