from collections.abc import Iterator

import pytest

from tests.apps.serving.serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running
