"""The cursor in a reference finds its place again behind every kind of edit."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from specdec.strategies.sources.cursor import Cursor, Reference
from tests.support.examples import examples

OTHERS = st.lists(st.integers(1000, 2000), min_size=0, max_size=4)  # none of these is in a reference


def expected(reference: Sequence[int], cursor: Cursor) -> list[int]:
    """The next tokens of a cursor's places, the first place's first."""
    return [reference[place.position] for place in cursor.places if place.position < len(reference)]


def followed(reference: Sequence[int], text: Sequence[int], prompt: Sequence[int] = ()) -> Cursor:
    index = Reference(reference)
    cursor = index.begin(prompt)
    for token in text:
        cursor = index.follow(cursor, token)
    return cursor


@examples(50)
@given(reference=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_a_text_that_agrees_has_one_place_whatever_repeats_in_it(reference: list[int]) -> None:
    for length in range(len(reference)):
        assert expected(reference, followed(reference, reference[:length])) == [reference[length]]


@examples(100)
@given(before=st.integers(0, 12), replaced=st.integers(0, 4), others=OTHERS, more=st.integers(1, 8))
def test_after_an_edit_the_next_token_that_agrees_is_enough(
    before: int, replaced: int, others: list[int], more: int
) -> None:
    reference = [*range(40)]  # each token once
    text = [*reference[:before], *others, *reference[before + replaced : before + replaced + more]]
    assert expected(reference, followed(reference, text))[0] == before + replaced + more


def test_an_edit_is_foreseen_to_replace_as_many_tokens_or_none() -> None:
    reference = [*range(20)]
    assert expected(reference, followed(reference, [0, 1, 2, 77])) == [4, 3]  # 77 for 3, or inserted before it
    assert expected(reference, followed(reference, [0, 1, 2, 77, 78])) == [5, 4]  # two for 3 and 4, or for 3 alone


def test_a_text_that_has_moved_is_found_by_two_tokens_however_far() -> None:
    reference = [*range(500)]
    assert expected(reference, followed(reference, [0, 1, 2, 400, 401]))[0] == 402
    assert expected(reference, followed(reference, [*range(300, 320), 10, 11]))[0] == 12


def test_the_next_of_equal_places_is_the_first_one_behind_the_edit() -> None:
    far = [*range(100, 150)]
    reference = [7, 8, 1, *far, 7, 8, 4, *far, 7, 8, 6]
    assert expected(reference, followed(reference, [7, 8, 1, 9, 7, 8]))[0] == 4


def test_a_false_place_is_left_and_the_edit_remembered() -> None:
    reference = [1, 2, 3, 4, 5, 9, 6, 7, 8]
    assert expected(reference, followed(reference, [1, 2, 3, 9])) == [6, 5, 4]  # 9 stands further on
    assert expected(reference, followed(reference, [1, 2, 3, 9, 5])) == [9]  # but has replaced 4


def test_a_prompt_that_ends_within_the_reference_is_continued() -> None:
    reference = [*range(30)]
    assert expected(reference, followed(reference, [], prompt=[99, 10, 11, 12, 13])) == [14]
    assert expected(reference, followed(reference, [], prompt=[99, 98, 11, 12])) == [0]  # two tokens say little


def test_nothing_is_expected_behind_the_end_or_of_an_empty_reference() -> None:
    assert expected([1, 2], followed([1, 2], [1, 2])) == []
    assert expected([], followed([], [1, 2, 3])) == []
