"""Faults on a path that the text doesn't take, or behind its end, must not show."""

import pytest
import torch

from specdec import Generator, ToyModel
from specdec.errors import NumericsError

PROPOSERS = ["autoregressive", "jacobi:n=4", "lookahead:N=3,W=4,G=5", "prompt_lookup:num_matches=2"]


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("size", [1, 2])
def test_constraints_that_run_out_on_a_rejected_path_change_nothing(proposer: str, size: int) -> None:
    for seed in range(12):
        model = ToyModel.random(vocab_size=3, seed=seed)
        settings = {"max_new_tokens": 9, "no_repeat_ngram_size": size, "eos_token_id": 0, "seed": 1}
        prompts = [[1], [2, 1], [1, 2, 2, 1]]
        plain = Generator(model, proposer="autoregressive").generate(prompts, **settings)
        drafted = Generator(model, proposer=proposer).generate(prompts, **settings)
        for one, other in zip(plain, drafted, strict=True):
            assert (one.finish_reason, one.token_ids) == (other.finish_reason, other.token_ids)
            assert type(one.error) is type(other.error)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_grammar_that_allows_nothing_behind_the_end_is_never_the_worse_for_drafts(proposer: str) -> None:
    def grammar(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, :] = scores if 3 not in input_ids[0, 4:] else -torch.inf  # in place, as processors may
        return scores

    def law(context: tuple[int, ...]) -> list[float]:
        return [0.97 if token == (context[-1] + 1) % 4 else 0.01 for token in range(4)]

    result = Generator(ToyModel(law, 4), proposer=proposer).generate(
        [1, 2, 3, 0], max_new_tokens=9, eos_token_id=3, logits_processor=grammar, seed=0
    )
    assert (result.finish_reason, result.token_ids) == ("stop", (1, 2, 3))


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_what_was_found_before_a_fault_is_kept_whatever_the_strategy(proposer: str) -> None:
    def law(context: tuple[int, ...]) -> list[float]:
        return [float("nan")] * 4 if len(context) >= 9 else [0.01, 0.01, 0.97, 0.01]

    good, bad = Generator(ToyModel(law, 4), proposer=proposer).generate(
        [[2, 2], [2, 2, 2, 2]], max_new_tokens=6, seed=0
    )
    assert good.finish_reason == "length"
    assert (bad.finish_reason, bad.token_ids) == ("error", (2,) * 5)
    assert isinstance(bad.error, NumericsError)
    assert "logits for position 9 are NaN" in str(bad.error)
