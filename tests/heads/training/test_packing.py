"""Packed rows hold every document once."""

import numpy as np

from specdec.heads.training.packing import pack
from specdec.heads.training.text import TrainingText


def text_of(count: int, longest: int) -> TrainingText:
    draw = np.random.default_rng(0)
    documents = [draw.integers(1, 90, draw.integers(3, longest)).astype(np.int32) for _ in range(count)]
    return TrainingText.of(documents, [int(draw.integers(1, len(each))) for each in documents])


def test_every_document_is_in_one_row() -> None:
    text = text_of(80, 40)
    rows = pack(text, 64, np.random.default_rng(1))
    assert rows.is_answer.sum() == text.num_answer_tokens
    for index in range(len(text)):
        places = rows.documents == index
        assert rows.tokens[places].tolist() == text.document(index).tolist()
        assert rows.positions[places].tolist() == list(range(len(text.document(index))))
        assert rows.is_answer[places].tolist() == [at >= text.answers[index] for at in range(len(text.document(index)))]
        assert len(places.nonzero()[:, 0].unique()) == 1
    assert (rows.documents >= 0).float().mean() > 0.9


def test_long_documents_are_cut() -> None:
    text = TrainingText.of([np.arange(100, dtype=np.int32)], [10])
    rows = pack(text, 64, np.random.default_rng(1))
    assert rows.tokens.tolist() == [list(range(64))]


def test_a_position_sees_its_own_document_up_to_itself() -> None:
    rows = pack(text_of(9, 20), 32, np.random.default_rng(2))
    visible = rows.visible()
    for row in range(len(rows)):
        for at in range(32):
            expected = [other <= at and rows.documents[row, other] == rows.documents[row, at] for other in range(32)]
            assert visible[row, at].tolist() == expected
