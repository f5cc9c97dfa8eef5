"""New tokens are decoded with what stands before them, in linear time, for every kind of tokenizer."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import StopStringCriteria
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdec.decoding.text.detokenizer import TextDecoder
from tests.support.byte_tokenizer import END as BYTE_END
from tests.support.byte_tokenizer import trained
from tests.support.tokenizers_of_kinds import CHANNEL, END, ids_of, llama, metaspace, wordpiece

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
KINDS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "metaspace": metaspace,
    "metaspace, cleaned": lambda: metaspace(cleans=True),
    "wordpiece": lambda: wordpiece(cleans=False),
    "wordpiece, cleaned": lambda: wordpiece(cleans=True),
    "bytes": trained,
}


def pieces(tokenizer: Any, prompt: Sequence[int], new: Sequence[int], *stop: str, skips: bool = True) -> list[str]:
    """The text taken after each token until a stop string is complete, and the rest."""
    decoder, taken = TextDecoder(tokenizer, stop, prompt, skip_special_tokens=skips), list[str]()
    for token in new:
        is_complete = decoder.push(token)
        taken.append(decoder.take())
        if is_complete:
            break
    taken.append(decoder.finish())
    assert "".join(taken) == decoder.text
    return taken


def added(tokenizer: Any, prompt: Sequence[int], new: Sequence[int], skips: bool) -> str:
    """What the new tokens add to the prompt's text, by two plain calls of ``decode``.

    Bytes at the prompt's end are part of a character that the new tokens complete.
    """
    before, whole = (
        tokenizer.decode([*ids], skip_special_tokens=skips) if ids else "" for ids in (prompt, [*prompt, *new])
    )
    if whole.startswith(before):
        return str(whole[len(before) :])
    same = next(place for place, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other)
    return str(whole[same:])


def test_the_first_word_has_its_space() -> None:
    prompt = llama()("once upon")["input_ids"]
    assert pieces(llama(), prompt, ids_of(llama(), "▁a", "▁time")) == [" a", " time", ""]
    assert pieces(llama(), [], ids_of(llama(), "▁a", "▁time")) == ["a", " time", ""]
    assert "".join(pieces(llama(), prompt, ids_of(llama(), "▁a", "▁time"), " a time")) == ""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_new_tokens_add_what_decoding_all_of_them_adds(kind: str, data: st.DataObject) -> None:
    """Any tokens; of bytes that are decoded as a run, which streams can't follow, only those of whole characters."""
    tokenizer = KINDS[kind]()
    tokens = [token for token in tokenizer.get_vocab() if not token.startswith("<0x")]
    units = [[token] for token in sorted(tokens)]
    units += [[f"<0x{byte:02X}>" for byte in text.encode()] for text in "é東🦙\n"] if kind == "llama" else []
    some = st.lists(st.sampled_from(units), max_size=12).map(lambda found: [token for unit in found for token in unit])
    prompt, new = (tokenizer.convert_tokens_to_ids(data.draw(some)) for _ in range(2))
    skips = data.draw(st.booleans())
    before = tokenizer.decode(prompt, skip_special_tokens=skips)
    if "cleaned" in kind and not tokenizer.decode([*prompt, *new], skip_special_tokens=skips).startswith(before):
        return  # the prompt's own text would change
    assert "".join(pieces(tokenizer, prompt, new, skips=skips)) == added(tokenizer, prompt, new, skips)


@given(st.lists(st.sampled_from([*" '.,?!ntmsver", "n't", "'ve", " ' "]), max_size=40))
def test_spaces_are_taken_out_as_from_the_whole_text(words: list[str]) -> None:
    class Spelled:
        clean_up_tokenization_spaces = True
        clean_up_tokenization = wordpiece(cleans=True).clean_up_tokenization

        def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
            text = "".join(words[token] for token in ids)
            return self.clean_up_tokenization(text) if clean_up_tokenization_spaces else text

    ids = range(len(words))
    assert "".join(pieces(Spelled(), [], ids)) == Spelled().clean_up_tokenization("".join(words))


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
@pytest.mark.parametrize("stop", [" a time", "a time", "e there", " there", "ime t", "x t"])
def test_stop_strings_stop_where_transformers_do(kind: str, stop: str) -> None:
    tokenizer = KINDS[kind]()
    prompt = tokenizer("once upon", add_special_tokens=False)["input_ids"]
    new = ids_of(tokenizer, "▁a", "▁time", "▁there", "▁was", "▁one")
    criterion = StopStringCriteria(tokenizer, [stop])
    ends = [bool(criterion(torch.tensor([[*prompt, *new[: count + 1]]]), None)) for count in range(len(new))]
    taken = pieces(tokenizer, prompt, new, stop)
    assert len(taken) - 1 == (ends.index(True) + 1 if any(ends) else len(new))
    assert "".join(taken) == " a time there was one".partition(stop)[0]


JUNK = {
    "continuation bytes": [0x80],
    "first bytes": [0xE6],
    "two of three bytes": [0xE6, 0x9D],
    "three of four bytes": [0xF0, 0x9F, 0xA6],
    "bytes that no character has": [0xFF],
    "a good character after junk": [0xFF, 0xE6, 0x9D, 0xB1],
    "letters after junk": [0xFF, 0x41],
}


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.num_decoded = tokenizer, 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


def byte_tokens(kind: str, values: Sequence[int]) -> list[int]:
    if kind == "llama":
        return ids_of(llama(), *(f"<0x{value:02X}>" for value in values))
    return [trained().convert_tokens_to_ids(bytes_to_unicode()[value]) for value in values]


@pytest.mark.parametrize("kind", ["llama", "bytes"])
@pytest.mark.parametrize("junk", JUNK)
def test_bytes_that_are_no_character_are_final_once_three_more_have_come(kind: str, junk: str) -> None:
    tokenizer = Counting(KINDS[kind]())
    ids = byte_tokens(kind, (JUNK[junk] * 400)[:400])
    decoder, shown = TextDecoder(tokenizer), ""
    for count, token in enumerate(ids):
        decoder.push(token)
        shown += decoder.take()
        if count % 100 == 99:
            assert len(TextDecoder(tokenizer).text_of(ids[: count + 1])) - len(shown) <= 3
    tokenizer.num_decoded = 0
    whole = TextDecoder(tokenizer).text_of(ids)
    assert tokenizer.num_decoded <= 60 * len(ids)  # and not half of its square
    assert whole == shown + decoder.finish()
    if kind == "bytes":
        assert whole == trained().decode(ids)
    assert len(whole) >= 133


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", [END, CHANNEL, "unknown", "▁", "▁▁", "."])
@pytest.mark.parametrize("prompt", [(), (0,)])
def test_runs_of_tokens_with_little_or_no_text_take_linear_time(kind: str, token: str, prompt: tuple[int, ...]) -> None:
    tokenizer = KINDS[kind]()
    vocabulary = tokenizer.get_vocab()
    if kind == "bytes":
        token = BYTE_END if token in {END, CHANNEL} else token
    if token not in vocabulary and token != "unknown":
        return
    counting = Counting(tokenizer)
    ids = [vocabulary.get(token, len(tokenizer) + 5)] * 1000
    text = TextDecoder(counting, (), prompt).text_of(ids)
    assert counting.num_decoded <= 60 * len(ids)
    assert text == added(tokenizer, prompt, ids, skips=True) or "cleaned" in kind


@pytest.mark.parametrize("kind", ["llama", "bytes"])
def test_special_tokens_between_the_bytes_of_a_character_leave_it_whole(kind: str) -> None:
    tokenizer = KINDS[kind]()
    first, *rest = byte_tokens(kind, "東".encode())
    end = tokenizer.convert_tokens_to_ids(END if kind == "llama" else BYTE_END)
    assert "".join(pieces(tokenizer, [], [first, *[end] * 50, *rest])) == "東"


def test_a_long_run_of_bytes_that_begins_with_junk_is_what_the_tokenizer_makes_of_it() -> None:
    counting = Counting(llama())
    ids = byte_tokens("llama", b"\xff" + 100 * "東".encode())
    text = TextDecoder(counting).text_of(ids)
    assert counting.num_decoded <= 60 * len(ids)
    assert text == llama().decode(ids)


def test_a_prompt_of_special_tokens_alone_is_read_once_or_twice() -> None:
    counting = Counting(llama())
    TextDecoder(counting, (), [1] * 4000).text_of(ids_of(llama(), "▁a"))
    assert counting.num_decoded <= 20 * 4000


def test_a_good_character_that_was_shown_stays_when_the_text_ends_inside_the_next() -> None:
    ids = ids_of(llama(), "▁x", "bytes:東京", "<0xE6>", "<0x9D>")
    assert llama().decode(ids[1:]) == INCOMPLETE * 8  # a run of bytes is all or nothing there
    assert pieces(llama(), ids[:1], ids[1:])[2::3] == ["東", "京", INCOMPLETE * 2]


@pytest.mark.parametrize("kind", ["llama", "bytes"])
def test_bytes_at_the_end_of_a_prompt_begin_the_first_character(kind: str) -> None:
    tokenizer, ids = KINDS[kind](), byte_tokens(kind, "東京都".encode())
    for cut in range(len(ids)):
        whole, rest = divmod(cut, 3)
        text = "".join(pieces(tokenizer, ids[:cut], ids[cut:]))
        assert text == "東京都"[whole:], (cut, rest)


def test_tokens_start_in_the_text_where_their_character_does() -> None:
    decoder = TextDecoder(llama(), (), ids_of(llama(), "▁once"))
    ids = ids_of(llama(), "▁a", "bytes:🦙東", END, "▁time")
    text = decoder.text_of(ids)
    assert text == " a🦙東 time"
    assert decoder.offsets == [0, *[2] * 4, *[3] * 3, 4, 4]
    junk = TextDecoder(llama())
    assert junk.text_of(ids_of(llama(), "▁a", "<0xFF>", "▁time")) == f"a{INCOMPLETE} time"
    assert junk.offsets == [0, 1, 2]


def test_special_tokens_are_text_where_they_are_not_skipped() -> None:
    ids = ids_of(llama(), CHANNEL, "▁a", END)
    prompt = ids_of(llama(), "▁once")
    assert "".join(pieces(llama(), prompt, ids, skips=False)) == f"{CHANNEL} a{END}"
    assert "".join(pieces(llama(), prompt, ids, CHANNEL, skips=False)) == ""
    assert "".join(pieces(llama(), prompt, ids)) == " a"


def test_a_prompt_that_the_tokenizer_cannot_decode_is_no_context() -> None:
    class Short:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "".join("abc"[token] for token in ids)

    assert "".join(pieces(Short(), [9], [0, 1])) == "ab"
