"""Text while it is decoded: whole characters only, cut where a stop string starts, whatever the tokens' borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoding.text.detokenizer import TextDecoder
from tests.support.byte_tokenizer import CORPUS, END, byte_ids, trained

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
TEXTS = st.one_of(
    st.text(alphabet="abnté東京😀👩\u200d \n", max_size=24),
    st.sampled_from(CORPUS),
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters=INCOMPLETE), max_size=12),
)


def encode(text: str, in_bytes: bool) -> list[int]:
    return (byte_ids(text) if in_bytes else trained()(text)["input_ids"]) if text else []


def pieces(ids: list[int], *stop: str) -> tuple[list[str], TextDecoder]:
    """The text taken after each token until a stop string is complete, and the rest."""
    decoder, taken = TextDecoder(trained(), stop), list[str]()
    for token in ids:
        is_complete = decoder.push(token)
        taken.append(decoder.take())
        if is_complete:
            break
    return [*taken, decoder.finish()], decoder


@given(TEXTS, st.booleans())
def test_pieces_are_whole_characters_and_join_to_the_text_of_all_tokens(text: str, in_bytes: bool) -> None:
    ids = encode(text, in_bytes)
    taken, decoder = pieces(ids)
    assert not any(INCOMPLETE in piece for piece in taken)
    assert "".join(taken) == decoder.text == trained().decode(ids) == text


@given(TEXTS, st.booleans(), st.data())
def test_stop_strings_cut_as_a_search_in_the_whole_text_after_each_token_would(
    text: str, in_bytes: bool, data: st.DataObject
) -> None:
    some_of_it = st.builds(lambda start, size: text[start : start + size], st.integers(0, 20), st.integers(1, 4))
    stop = data.draw(st.lists(st.one_of(st.sampled_from(["a", "b\n", "é東", "京😀"]), some_of_it), max_size=3))
    stop = [string for string in stop if string]
    ids = encode(text, in_bytes)
    ids = ids[: data.draw(st.integers(0, len(ids)))]

    expected, num_used = trained().decode(ids), len(ids)
    for count in range(1, len(ids) + 1):
        whole = trained().decode(ids[:count]).rstrip(INCOMPLETE)
        starts = [whole.find(string) for string in stop if string in whole]
        if starts:
            expected, num_used = whole[: min(starts)], count
            break

    taken, decoder = pieces(ids, *stop)
    assert len(taken) - 1 == num_used
    assert "".join(taken) == decoder.text == expected


def test_a_stop_string_that_spans_tokens_cuts_where_it_starts() -> None:
    ids = byte_ids("say when, then go")
    taken, decoder = pieces(ids, "en, th")
    assert "".join(taken) == decoder.text == "say wh"
    assert len(taken) - 1 == len("say when, th")


def test_what_may_begin_a_stop_string_is_held_back_and_released_when_it_does_not_complete() -> None:
    decoder = TextDecoder(trained(), ("XYZ",))
    shown = []
    for token in byte_ids("aXYXYb"):
        decoder.push(token)
        shown.append(decoder.take())
    assert shown == ["a", "", "", "XY", "", "XYb"]
    assert decoder.finish() == ""


def test_as_much_is_held_back_as_may_begin_a_stop_string() -> None:
    assert pieces(byte_ids("xaaab"), "aab")[0] == ["x", "", "", "a", "", ""]


def test_what_is_held_back_at_the_end_is_given_by_finish() -> None:
    decoder = TextDecoder(trained(), ("XYZ",))
    for token in byte_ids("aXY"):
        assert not decoder.push(token)
    assert [decoder.take(), decoder.finish(), decoder.finish()] == ["a", "XY", ""]


@pytest.mark.parametrize("stop", [("the", "at on"), ("at on", "the"), ("sat", "at", "t")])
def test_of_several_stop_strings_in_one_token_the_one_that_starts_first_cuts(stop: tuple[str, ...]) -> None:
    class OneToken:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "a cat sat on the mat" if ids else ""

    decoder = TextDecoder(OneToken(), stop)
    assert decoder.push(0)
    assert decoder.text == "a cat sat on the mat"[: min("a cat sat on the mat".find(string) for string in stop)]


def test_the_stop_string_that_is_complete_first_cuts_although_a_longer_one_started_before() -> None:
    assert pieces(byte_ids("abcdef"), "bcde", "c")[1].text == "ab"


def test_a_stop_string_in_front_of_an_incomplete_character_stops_at_once() -> None:
    class Spaced:
        """Token 1 is a space and the first byte of a character, as in many vocabularies."""

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return bytes([byte for token in ids for byte in ([97], [32, 0xE2], [0x80, 0x94])[token]]).decode(
                errors="replace"
            )

    decoder = TextDecoder(Spaced(), (" ",))
    assert not decoder.push(0)
    assert decoder.push(1)
    assert decoder.take() + decoder.finish() == decoder.text == "a"


def test_an_incomplete_last_character_comes_with_finish_and_not_before() -> None:
    ids = byte_ids("né")[:-1]
    taken, decoder = pieces(ids)
    assert taken == ["n", "", INCOMPLETE]
    assert decoder.text == trained().decode(ids) == "n" + INCOMPLETE


def test_special_tokens_have_no_text_and_do_not_disturb_their_neighbours() -> None:
    end = trained().convert_tokens_to_ids(END)
    ids = [*byte_ids("caf"), end, *byte_ids("é😀")[:3], end]
    taken, _ = pieces(ids)
    assert "".join(taken) == trained().decode(ids, skip_special_tokens=True)
    assert "".join(taken[: len("caf") + 3]) == "café"


def test_hidden_tokens_are_omitted_where_other_special_tokens_are_shown() -> None:
    end, hidden = trained().convert_tokens_to_ids(END), byte_ids("x")[0]
    decoder = TextDecoder(trained(), ("bc",), skip_special_tokens=False, hidden_token_ids=[hidden])
    for token in [*byte_ids("xa"), end, *byte_ids("é")[:1], hidden, *byte_ids("é")[1:], *byte_ids("b"), hidden]:
        assert not decoder.push(token)
    assert decoder.push(byte_ids("c")[0]), "a stop string spans a hidden token"
    assert decoder.finish() == decoder.text == f"a{END}é"
    after = 1 + len(END)
    assert decoder.offsets == [0, 0, 1, after, after, after, after + 1, after + 2, after + 2]
