"""Passes are filled up to few sizes, single tokens where drafts are likely to come back."""

from specdec_openvino.engine.filling import Filling

from specdec.layout import Padding


def test_the_last_row_has_what_all_lack_of_a_size() -> None:
    filling = Filling(Padding((6, 8)))
    assert [filling.tokens(nodes) for nodes in ([2], [6], [7], [1, 1, 2], [8], [9], [20, 3])] == [
        [6], [6], [8], [1, 1, 4], [8], [9], [20, 3],
    ]  # fmt: skip


def test_a_token_is_fed_alone_until_drafts_come_and_once_several_were_in_a_row() -> None:
    filling = Filling(Padding((6, 8)))
    assert [sum(filling.tokens([nodes])) for nodes in (1, 1, 2, 1, 1, 1, 1, 1, 1, 3, 1)] == [
        1, 1, 6, 6, 6, 6, 6, 1, 1, 6, 6,
    ]  # fmt: skip


def test_a_prompt_between_two_texts_without_drafts_changes_nothing() -> None:
    filling = Filling(Padding((6, 8)))
    assert [sum(filling.tokens([1])) for _ in range(2)] == [1, 1]
    assert filling.tokens([7], reads_prompt=True) == [8]
    assert [sum(filling.tokens([nodes])) for nodes in (1, 1, 2, 1)] == [1, 1, 6, 6]


def test_a_token_that_has_a_size_of_its_own_is_never_padded() -> None:
    filling = Filling(Padding((1, 6, 8)), num_static=1)
    assert [filling.tokens([nodes]) for nodes in (1, 3, 1)] == [[1], [6], [1]]


def test_where_rows_need_two_tokens_none_is_ever_alone() -> None:
    filling = Filling(Padding((6, 8), 2))
    assert [filling.tokens([1]) for _ in range(6)] == [[6]] * 6
    assert filling.tokens([1, 1, 1, 4]) == [2, 2, 2, 4]


def test_without_sizes_passes_are_what_they_are() -> None:
    assert [Filling(Padding(least_width=least)).tokens([1, 3]) for least in (1, 2)] == [[1, 3], [2, 3]]
    assert Filling(Padding()).tokens([1]) == [1]
