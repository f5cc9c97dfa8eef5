"""A bias and penalties by what was written mean what OpenAI's reference says, and the same for every strategy."""

from typing import Any

import pytest
import torch

from specdec import Generator, RequestError, ToyModel
from specdec.sampling.processors import CountPenalty
from tests.support.plain import keyed_gumbel

SETTINGS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.4, "presence_penalty": 0.3, "logit_bias": {3: 1.5, 0: -100.0}},
]


def by_definition(model: ToyModel, prompt: list[int], count: int, seed: int | None, given: dict[str, Any]) -> list[int]:
    """Plain decoding with scores as the reference writes them, token by token and without tensors."""
    written: list[int] = []
    for _ in range(count):
        law = torch.tensor(list(model.probs((*prompt, *written))), dtype=torch.float64)
        scores = law.log()
        for token in range(model.vocab_size):
            times = written.count(token)
            scores[token] -= times * given.get("frequency_penalty", 0.0)
            scores[token] -= float(times > 0) * given.get("presence_penalty", 0.0)
            scores[token] += given.get("logit_bias", {}).get(token, 0.0)
        if seed is not None:
            noise = keyed_gumbel(seed, len(prompt) + len(written), model.vocab_size)
            scores = scores.softmax(0).log() + torch.from_numpy(noise)
        written.append(int(scores.argmax()))
    return written


@pytest.mark.parametrize("given", SETTINGS)
@pytest.mark.parametrize("seed", [None, 4])
def test_the_text_is_that_of_the_definition_for_every_strategy(given: dict[str, Any], seed: int | None) -> None:
    model, prompt = ToyModel.random(), [1, 2, 3, 1, 2]
    generator = Generator(model, proposer="autoregressive")
    expected = by_definition(model, prompt, 40, seed, given)
    settings = given | {"max_new_tokens": 40} | ({} if seed is None else {"temperature": 1.0, "seed": seed})
    assert expected != list(generator.generate(prompt, **{**settings, **dict.fromkeys(given)}).token_ids)
    for proposer in ("autoregressive", "prompt_lookup", "lookahead:N=3,W=3,G=3", "jacobi:n=4"):
        assert list(generator.generate(prompt, proposer=proposer, **settings).token_ids) == expected


def test_the_prompt_doesnt_count() -> None:
    scores = CountPenalty(1.0, 0.5, 3)(torch.tensor([[0, 0, 1, 1, 2, 2]]), torch.zeros(1, 4))
    assert scores.tolist() == [[0.0, -1.5, -2.5, 0.0]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"logit_bias": {8: 1.0}}, "logit_bias: 8 is outside the vocabulary of 8"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {"cat": 1.0}}, "logit_bias"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
    ],
)
def test_what_cant_be_meant_is_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        Generator(ToyModel.random(), proposer="autoregressive").generate([1], **given)
