"""The known mistakes can be put into the code as it is today."""

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mistakes_text_is_in_its_file_once_and_its_tests_exist(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    for before, after in mutation.changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8"), test
