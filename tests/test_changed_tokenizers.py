"""A tokenizer that gains tokens after its generator was made: all that is known of its vocabulary follows it."""

import copy
from typing import Any

import pytest

from specdec import Generator, ModelError, ToyModel
from specdec.constraints import Choice
from specdec.strategies.draft_model.proposer import DraftModelProposer
from tests.support.byte_tokenizer import trained

pytest.importorskip("llguidance")
NUM_SPARE = 8  # logits beyond the tokenizer's tokens, as in models whose vocabulary is padded


@pytest.fixture
def tokenizer() -> Any:
    return copy.deepcopy(trained())


def model_of(tokenizer: Any, likely: int) -> ToyModel:
    """A model with spare logits that prefers one token id, then the end of text."""
    size = len(trained()) + NUM_SPARE

    def law(context: tuple[int, ...]) -> list[float]:
        return [8.0 if token == likely else 2.0 if token == tokenizer.eos_token_id else 1.0 for token in range(size)]

    return ToyModel(law, size)


def test_a_constraint_is_written_with_tokens_that_were_added_since(tokenizer: Any) -> None:
    new = len(tokenizer)
    generator = Generator(model_of(tokenizer, new), tokenizer)
    options = {"constraint": Choice(["call me", "stop"]), "max_new_tokens": 40}
    assert new not in generator.generate("the", **options).token_ids
    tokenizer.add_tokens(["call"])
    after = generator.generate("the", **options)
    assert (after.parsed, after.token_ids[0]) == ("call me", new)
    assert after.token_ids == Generator(model_of(tokenizer, new), tokenizer).generate("the", **options).token_ids


def test_a_token_that_was_made_special_since_no_longer_spells_text(tokenizer: Any) -> None:
    """The vocabulary keeps its size, so its length alone doesn't show it."""
    tokenizer.add_tokens(["call"])
    call = tokenizer.convert_tokens_to_ids("call")
    generator = Generator(model_of(tokenizer, call), tokenizer)
    options = {"constraint": Choice(["call me", "stop"]), "max_new_tokens": 40}
    assert generator.generate("the", **options).token_ids[0] == call
    tokenizer.add_special_tokens({"additional_special_tokens": ["call"]})
    assert call not in generator.generate("the", **options).token_ids


def test_a_draft_models_common_tokens_have_those_that_were_added_since(tokenizer: Any) -> None:
    own, new = copy.deepcopy(tokenizer), len(tokenizer)
    own.add_tokens(["naïve"])
    proposer = DraftModelProposer(model=model_of(own, new), tokenizer=own, vocabulary="shared")
    generator = Generator(model_of(tokenizer, new), tokenizer, proposer=proposer)
    generator.generate("the", max_new_tokens=8, eos_token_id=())
    tokenizer.add_tokens(["naïve"])
    result = generator.generate("the", max_new_tokens=8, eos_token_id=(), temperature=0)
    assert set(result.token_ids) == {new}
    assert result.stats.num_accepted_tokens > 0


def test_a_tokenizer_that_outgrows_the_model_is_refused_as_at_the_start(tokenizer: Any) -> None:
    generator = Generator(model_of(tokenizer, 5), tokenizer)
    generator.generate("the", max_new_tokens=2)
    tokenizer.add_tokens([f"<{number}>" for number in range(NUM_SPARE + 1)])
    with pytest.raises(ModelError, match="ids but the model's vocabulary is"):
        generator.generate("the", max_new_tokens=2)
