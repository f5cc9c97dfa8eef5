"""The plug-in is found by name, is lossless, and accepts something where text repeats."""

import pytest

from specdec import Generator, ToyModel
from specdec.testing import check_proposer


def cycle(context: tuple[int, ...]) -> list[float]:
    """A distribution that counts 0, 1, 2, 3, 0, … with a little noise."""
    return [0.91 if token == (context[-1] + 1) % 4 else 0.03 for token in range(4)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_found_by_name_and_says_what_plain_decoding_says(temperature: float) -> None:
    settings = {"max_new_tokens": 60, "temperature": temperature, "seed": 11}
    model = ToyModel(cycle, vocab_size=4)
    plain = Generator(model, proposer="autoregressive").generate([0, 1], **settings)
    drafted = Generator(model, proposer="successor:length=3").generate([0, 1], **settings)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.tokens_per_step > 1.5


def test_it_never_changes_the_text_whatever_the_model() -> None:
    for seed in range(20):
        model = ToyModel.random(vocab_size=4, order=2, seed=seed)
        check_proposer("successor:length=3", model, [[0, 1], [3], [2, 2, 1, 2]], seed=seed)
