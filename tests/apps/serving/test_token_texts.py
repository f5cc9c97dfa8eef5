"""The bytes of single tokens, by the way in which their vocabulary spells them."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdec.apps.serving.token_texts import TokenTexts
from tests.support.byte_tokenizer import trained
from tests.support.tokenizers_of_kinds import ids_of, llama, metaspace, wordpiece


def test_each_token_of_a_byte_level_vocabulary_has_the_bytes_that_it_is_spelled_by() -> None:
    texts, spelling = TokenTexts(trained()), {letter: byte for byte, letter in bytes_to_unicode().items()}
    for spelled, token in trained().get_vocab().items():
        assert texts.bytes_of(token) == bytes(spelling[letter] for letter in spelled)


def test_a_token_that_stands_for_a_byte_has_it() -> None:
    texts = TokenTexts(llama())
    for byte in range(256):
        assert texts.bytes_of(ids_of(llama(), f"<0x{byte:02X}>")[0]) == bytes([byte])


@pytest.mark.parametrize("made", [llama, metaspace, lambda: wordpiece(cleans=False)])
def test_the_bytes_of_a_texts_tokens_are_those_of_the_text(made: Callable[[], Any]) -> None:
    tokenizer = made()
    texts = TokenTexts(tokenizer)
    ids = tokenizer("a time there was", add_special_tokens=False)["input_ids"]
    assert b"".join(texts.bytes_of(token) or b"" for token in ids).decode().strip() == "a time there was"


def test_a_replacement_character_of_the_vocabulary_is_one() -> None:
    token = ids_of(metaspace(), "\N{REPLACEMENT CHARACTER}")[0]
    assert TokenTexts(metaspace()).bytes_of(token) == "\N{REPLACEMENT CHARACTER}".encode()
