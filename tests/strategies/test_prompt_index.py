"""The index of prompt lookup against a search through the text."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.strategies.prompt_lookup import PromptIndex


@given(st.lists(st.lists(st.integers(0, 2), max_size=20), max_size=8), st.integers(1, 6))
def test_every_earlier_occurrence_is_found_while_the_text_grows(parts: list[list[int]], max_ngram: int) -> None:
    index, text = PromptIndex(), list[int]()
    for part in parts:
        index.extend(part)
        text += part
        expected = list[list[int]]()
        for n in range(1, max_ngram + 1):
            expected.append([end for end in range(n, len(text)) if text[end - n : end] == text[-n:]])
        assert [list(ends) for ends in index.matches(max_ngram)] == [ends for ends in expected if ends]
        assert len(index) == len(text)
