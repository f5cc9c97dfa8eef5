"""Text keeps its documents, through files too, and counts their answers."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from specdec import ModelError
from specdec.heads.training.head_training import draft_vocabulary, token_counts
from specdec.heads.training.text import TrainingText

DOCUMENTS = [[5, 6, 7, 7], [5, 9, 9, 9, 7], [5, 6, 7, 7], [5, 8, 1]]
ANSWERS = [2, 1, 2, 2]


def text() -> TrainingText:
    return TrainingText.of([np.array(each, dtype=np.int32) for each in DOCUMENTS], ANSWERS)


def contents(given: TrainingText) -> list[tuple[list[int], int]]:
    return [(given.document(index).tolist(), int(given.answers[index])) for index in range(len(given))]


@pytest.mark.parametrize("largest", [9, 70_000])
def test_a_file_gives_the_same_documents(tmp_path: Path, largest: int) -> None:
    written = TrainingText.of(
        [*(np.array(each, np.int32) for each in DOCUMENTS), np.array([1, largest], np.int32)], [*ANSWERS, 1]
    )
    written.save(tmp_path / "text.npz")
    assert contents(TrainingText.load(tmp_path / "text.npz")) == contents(written)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ModelError, match="no file of training text"):
        TrainingText.load(tmp_path / "text.npz")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.npz"
    TrainingText.of([np.arange(400, dtype=np.int32) % 7], [2]).save(file)
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(ModelError):  # a few bits mean nothing
            assert contents(TrainingText.load(file)) == [([at % 7 for at in range(400)], 2)]


def test_equal_documents_are_kept_once() -> None:
    assert contents(text().deduplicated()) == [contents(text())[index] for index in (0, 1, 3)]


def test_a_longer_document_takes_the_place_of_the_one_that_it_begins_with() -> None:
    cut, other = [5, 6], [7, 1]
    for documents, expected in (
        ([cut, other, [5, 6, 8]], [[5, 6, 8], other]),
        ([[5, 6, 8], other, cut], [[5, 6, 8], other]),
        ([cut, other, [5, 6, 8], [5, 6, 9]], [[5, 6, 8], other, [5, 6, 9]]),
        ([cut, other, [5, 6, 8, 1], [5, 6, 8]], [[5, 6, 8, 1], other]),
        ([[5, 6 + 2**16], [5, 6]], [[5, 6 + 2**16], [5, 6]]),
    ):
        answers = [len(each) - 1 for each in documents]
        found = TrainingText.of([np.array(each, np.int32) for each in documents], answers).deduplicated()
        assert contents(found) == [(each, len(each) - 1) for each in expected]


def test_the_first_documents_have_the_wanted_answers() -> None:
    assert text().num_answer_tokens == 9
    assert len(text().first(2)) == 1
    assert len(text().first(3)) == 2
    assert len(text().first(100)) == 4


def test_the_vocabulary_has_the_most_frequent_tokens_of_answers() -> None:
    assert draft_vocabulary(text(), 12, 2).tolist() == [7, 9]
    assert draft_vocabulary(text(), 12, 5).tolist() == [0, 1, 2, 7, 9]
    assert token_counts(text(), 12).tolist() == [0, 1, 0, 0, 0, 0, 0, 5, 0, 3, 0, 0]
