"""Scores that records keep: one vector for each token of the text, as it was decided by, whatever was drafted."""

from typing import Any

import pytest
import torch

from specdec import Generator, ToyModel
from specdec.record import StepRecord

MODEL = ToyModel.random(vocab_size=6, order=2, seed=4)
PROMPT = [1, 2, 3, 1, 2]
STRATEGIES = ["autoregressive", "prompt_lookup:num_matches=3", "lookahead:N=3,W=3,G=3", "jacobi"]


def kept(proposer: str, **settings: Any) -> tuple[tuple[int, ...], list[torch.Tensor | None]]:
    """A text, and the scores that the records of its steps had."""
    records = list[StepRecord]()
    generator = Generator(MODEL, proposer=proposer, verifier=settings.pop("verifier", "match"))
    result = generator.generate(
        PROMPT, max_new_tokens=20, seed=3, keeps_scores=True, on_step=records.append, **settings
    )
    outcomes = [outcome for record in records for outcome in record.outcomes]
    assert [len(outcome.scores) for outcome in outcomes] == [len(outcome.tokens) for outcome in outcomes]
    return result.token_ids, [scores for outcome in outcomes for scores in outcome.scores]


def logits(text: list[int]) -> torch.Tensor:
    return torch.tensor(MODEL.probs(tuple(text)), dtype=torch.float64).log().float()


@pytest.mark.parametrize("proposer", STRATEGIES)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 2}], ids=["greedy", "sampled"])
def test_they_are_the_models_before_temperature_and_truncation(proposer: str, settings: dict[str, Any]) -> None:
    tokens, scores = kept(proposer, **settings)
    for index, shown in enumerate(scores):
        assert shown is not None
        assert (shown.dtype, shown.device.type) == (torch.float32, "cpu")
        assert torch.equal(shown, logits([*PROMPT, *tokens[:index]]))


@pytest.mark.parametrize("proposer", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_behind_processors(proposer: str, temperature: float) -> None:
    tokens, scores = kept(proposer, temperature=temperature, suppress_tokens=[2], no_repeat_ngram_size=3)
    for index, shown in enumerate(scores):
        assert shown is not None
        hidden = shown == -torch.inf
        text = [*PROMPT, *tokens[:index]]
        repeated = {text[at + 2] for at in range(len(text) - 2) if text[at : at + 2] == text[-2:]}
        assert set(hidden.nonzero().flatten().tolist()) == {2, *repeated}
        assert torch.equal(shown[~hidden], logits(text)[~hidden])


@pytest.mark.parametrize("proposer", STRATEGIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_keeps_state_is_not_asked_again_for_them(proposer: str, temperature: float) -> None:
    calls: list[int] = []

    class Counting:
        """Adds how often it was called to the first score."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            calls.append(input_ids.shape[1])
            return scores.index_add(1, torch.tensor([0]), torch.full((1, 1), float(len(calls)), dtype=scores.dtype))

        def __deepcopy__(self, memo: Any) -> "Counting":
            return self

    tokens, scores = kept(proposer, temperature=temperature, logits_processor=[Counting()])
    assert calls == list(range(len(PROMPT), len(PROMPT) + len(calls)))
    for index, shown in enumerate(scores):
        assert shown is not None
        expected = logits([*PROMPT, *tokens[:index]])
        assert torch.equal(shown[1:], expected[1:])
        assert float(shown[0]) == pytest.approx(float(expected[0]) + index + 1, abs=1e-4)


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
def test_rules_that_draw_otherwise_keep_them_too(verifier: str) -> None:
    tokens, scores = kept("prompt_lookup:num_matches=3", verifier=verifier, temperature=1.0)
    for index, shown in enumerate(scores):
        assert shown is not None
        assert torch.equal(shown, logits([*PROMPT, *tokens[:index]]))


def test_nothing_is_kept_unasked() -> None:
    records = list[StepRecord]()
    Generator(MODEL, proposer="jacobi").generate(PROMPT, max_new_tokens=9, on_step=records.append)
    assert {outcome.scores for record in records for outcome in record.outcomes} == {()}
