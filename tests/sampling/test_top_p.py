"""Top-p by its likeliest tokens: what transformers keeps, by other means."""

import pytest
import torch
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from specdec.sampling.processors import TopP

IDS = torch.tensor([[1]])


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 9.0])  # from all alike to one that has all the mass
@pytest.mark.parametrize("size", [5, 700, 5000])
def test_it_keeps_what_transformers_keeps(top_p: float, spread: float, size: int) -> None:
    for seed in range(5):
        scores = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread
        kept = TopPLogitsWarper(top_p)(IDS, scores).isfinite()
        found = TopP(top_p)(IDS, scores.clone())
        assert torch.equal(found[found.isfinite()], scores[found.isfinite()])
        differing = kept ^ found.isfinite()
        # Sums in another order may end a token earlier or later, at the edge.
        mass = scores.softmax(-1).sort(descending=True)[0].double().cumsum(-1)
        assert differing.sum() <= int((mass - top_p).abs().min() < 1e-6)


def test_after_top_k_only_those_are_left() -> None:
    scores = TopKLogitsWarper(20)(IDS, torch.randn(1, 3000, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(TopP(0.8)(IDS, scores), TopPLogitsWarper(0.8)(IDS, scores))


def test_of_equals_as_many_stay() -> None:
    scores = torch.tensor([[0.0, 5.0, 5.0, 5.0, 5.0, -1.0]])
    assert TopP(0.6)(IDS, scores).isfinite().sum() == TopPLogitsWarper(0.6)(IDS, scores).isfinite().sum() == 3
