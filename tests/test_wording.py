"""Messages count in English, one token, two tokens, and cut long values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import Generator, RequestError, ToyModel
from specdec.errors import plural, shortened


def test_a_count_agrees_with_its_noun() -> None:
    assert [plural(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [plural(count, "strategy", "strategies") for count in (1, 3)] == ["1 strategy", "3 strategies"]


@given(st.text(), st.integers(1, 12))
def test_a_long_text_is_cut_to_its_length_and_shows_it(text: str, length: int) -> None:
    shown = shortened(text, length)
    assert len(shown) == min(len(text), length)
    assert shown == text if len(text) <= length else shown == text[: length - 1] + "…"


def test_a_result_of_one_token_says_so() -> None:
    assert "1 token in 1 step, " in repr(Generator(ToyModel.random()).generate([1], max_new_tokens=1))
    assert "2 tokens in " in repr(Generator(ToyModel.random()).generate([1], max_new_tokens=2))


def test_refusals_of_one_prompt_or_token_count_in_the_singular() -> None:
    generator = Generator(ToyModel(lambda _: [0.5, 0.5], 2, max_positions=12))
    with pytest.raises(RequestError, match=r"2 seeds given for 1 prompt:"):
        generator.generate([1], seed=[1, 2])
    with pytest.raises(RequestError, match=r"each has 2 mappings for 1 prompt:"):
        generator.generate([[1]], each=[{}, {}])
    with pytest.raises(RequestError, match=r"the prompt has 1 token and max_new_tokens=13 would"):
        generator.generate([1], max_new_tokens=13)
    with generator.context() as context:
        generator.generate([1], context=context, max_new_tokens=1)
        assert repr(context) in ("Context(1 token)", "Context(2 tokens)")
