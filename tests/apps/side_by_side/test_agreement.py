"""A text that isn't transformers' own is a numeric tie or a defect, by transformers' own logits."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from specdec.apps.side_by_side.agreement import agreement
from tests.support.plain import decode_model

PROMPT, NUM_TOKENS = [5, 6, 7, 8], 8


@pytest.fixture(name="expected")
def _expected(built_in: tuple[Any, Any]) -> list[int]:
    return decode_model(built_in[0], PROMPT, NUM_TOKENS, None, eos=())


def test_the_same_tokens_are_the_same(built_in: tuple[Any, Any], expected: list[int]) -> None:
    assert agreement(built_in[0], PROMPT, expected, tuple(expected)).verdict == "same"


def test_another_token_is_a_defect_and_its_place_is_known(built_in: tuple[Any, Any], expected: list[int]) -> None:
    other = [*expected[:5], (expected[5] + 1) % 100, *expected[6:]]
    found = agreement(built_in[0], PROMPT, expected, other)
    assert (found.verdict, found.position) == ("defect", 5)
    assert "the model scores the token " in found.reason


@pytest.mark.parametrize("cut", ["ours", "theirs"])
def test_a_text_that_ends_too_early_is_a_defect(built_in: tuple[Any, Any], expected: list[int], cut: str) -> None:
    texts = (expected[:-2], expected) if cut == "theirs" else (expected, expected[:-2])
    found = agreement(built_in[0], PROMPT, *texts)
    assert (found.verdict, found.position) == ("defect", NUM_TOKENS - 2)


def test_two_tokens_that_the_model_scores_alike_are_a_tie(built_in: tuple[Any, Any], expected: list[int]) -> None:
    model = deepcopy(built_in[0])
    place, twin = 4, max(expected) + 1
    with torch.no_grad():  # the twin's row of the head is the token's own, but for the embeddings
        head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False)
        head.weight.copy_(model.lm_head.weight)
        head.weight[twin] = head.weight[expected[place]]
        model.lm_head = head
    found = agreement(model, PROMPT, expected, [*expected[:place], twin])
    assert (found.verdict, found.position) == ("numeric tie", place)
    assert "the two scores are 0 apart, and the noise is " in found.reason
