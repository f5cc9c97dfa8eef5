"""Log-probabilities of prompts, compared with transformers' own forward pass over the whole prompt."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.record import PromptLogprobs, StepRecord
from tests.support.built_in_model import built_in

TEXT = "# heapq\nimport os\ndef merge(first, second):\n    return sorted([*first, *second])\n"


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """A prompt of one token, two short ones, and one of several chunks."""
    ids = built_in()[1](TEXT)["input_ids"]
    return [ids[:1], ids[:2], ids, (ids * 30)[:700]]


@pytest.fixture(scope="module")
def expected() -> Callable[[tuple[int, ...]], torch.Tensor]:
    """Return the model's own log-probabilities after each token of a prompt; computed once for a prompt."""
    model: Any = copy.deepcopy(built_in()[0]).double()  # transformers' logits in float32 are off by 0.001

    @cache
    def of(prompt: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            logprobs: torch.Tensor = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        return logprobs

    return of


@pytest.fixture(scope="module")
def sampled(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """The texts after the prompts by plain decoding, without log-probabilities of the prompts."""
    with Generator(*built_in(), proposer="autoregressive") as generator:
        return [each.token_ids for each in generator.generate(prompts, max_new_tokens=4, temperature=1.0, seed=5)]


def gathered(records: list[StepRecord], num_prompts: int) -> list[list[PromptLogprobs]]:
    parts: list[list[PromptLogprobs]] = [[] for _ in range(num_prompts)]
    for record in records:
        for outcome in record.outcomes:
            if outcome.prompt_logprobs is not None:
                parts[outcome.request.index].append(outcome.prompt_logprobs)
    return parts


def assert_are_those(
    expected: Callable[..., torch.Tensor], parts: list[PromptLogprobs], prompt: list[int], num_top: int
) -> None:
    logprobs, position = expected(tuple(prompt)), 1
    for part in parts:
        assert part.start == position
        for logprob, ids, top in zip(part.logprobs, part.top_ids, part.top_logprobs, strict=True):
            law = logprobs[position - 1]
            assert torch.isclose(logprob, law[prompt[position]], atol=3e-3)
            assert torch.allclose(top, law.topk(num_top).values, atol=3e-3)
            assert torch.allclose(law[ids], top, atol=3e-3)
            position += 1
    assert position == len(prompt), "every token but the first"


@pytest.mark.parametrize(("proposer", "num_top"), [("autoregressive", 3), ("auto", 0), ("lookahead:N=3,W=3,G=3", 1)])
def test_they_are_the_models_own(
    expected: Any, sampled: list[tuple[int, ...]], prompts: list[list[int]], proposer: str, num_top: int
) -> None:
    records: list[StepRecord] = []
    with Generator(*built_in(), proposer=proposer) as generator:
        results = generator.generate(
            prompts, max_new_tokens=4, prompt_logprobs=num_top, temperature=1.0, seed=5, on_step=records.append
        )
    assert [each.token_ids for each in results] == sampled
    for prompt, parts in zip(prompts, gathered(records, len(prompts)), strict=True):
        assert_are_those(expected, parts, prompt, num_top)


def test_a_cached_prefix_leaves_none_out(expected: Any, prompts: list[list[int]]) -> None:
    records: list[StepRecord] = []
    with Generator(*built_in()) as generator, generator.open_batch(max_prefix_bytes=1 << 26) as batch:
        for settings in ({}, {}, {"prompt_logprobs": 2}):
            batch.add(prompts[-1], max_new_tokens=2, **settings)  # type: ignore[arg-type]
            while record := batch.advance():
                records.append(record)
        assert records[-1].outcomes[0].request.num_reused == 0
        assert any(outcome.request.num_reused for record in records for outcome in record.outcomes), "nothing is cached"
    assert_are_those(expected, gathered(records, 1)[0], prompts[-1], 2)


def test_a_context_leaves_none_out(expected: Any, prompts: list[list[int]]) -> None:
    records: list[StepRecord] = []
    with Generator(*built_in()) as generator, generator.context() as context:
        generator.generate(prompts[2], context=context, max_new_tokens=2)
        generator.generate(prompts[2], context=context, max_new_tokens=2, prompt_logprobs=2, on_step=records.append)
    assert_are_those(expected, gathered(records, 1)[0], prompts[2], 2)
