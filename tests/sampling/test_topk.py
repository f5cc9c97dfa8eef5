"""The greatest logits and their ids, by every way that they are searched, against a sort."""

import pytest
import torch

from specdec.sampling.topk import top_ids, top_lists, top_two, topk

SIZES = [7, 256, 300, 4096, 5000, 49152]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 2, 8, 100])
def test_they_are_those_of_a_sort(dtype: torch.dtype, size: int, k: int) -> None:
    values = torch.randn(2, 9, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    found, ids = topk(values, k)
    assert torch.equal(found, values.sort(-1, descending=True).values[..., :k])
    assert torch.equal(found, values.gather(-1, ids))
    assert all(len(set(row)) == len(row) for row in ids.flatten(0, 1).tolist())
    if k == 2:
        assert torch.equal(top_two(values[1, 2]), found[1, 2])
    if k == 1:
        assert top_ids(values) == ids[..., 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_of_equals_one_is_the_lowest(dtype: torch.dtype, size: int) -> None:
    values = torch.zeros(1, 2, size, dtype=dtype)
    values[0, 0, [3, size - 1]] = 1.0
    assert topk(values, 1)[1].flatten().tolist() == [3, 0]
    if lists := top_lists(values, 3):
        assert lists == ([[[3, size - 1, 0], [0, 1, 2]]], [[[1, 1, 0], [0, 0, 0]]])
    assert top_ids(values) == [[3, 0]]
    assert top_two(values[0, 0]).tolist() == [1, 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, -1])
def test_what_is_no_number_is_found(size: int, wrong: float, at: int) -> None:
    values = torch.randn(1, 1, size)
    values[..., at] = wrong
    assert wrong < 0 or top_lists(values, 4) is None
    assert bool(topk(values, 1)[0].isfinite()) == (wrong < 0)
    assert (top_ids(values)[0][0] >= 0) == (wrong < 0)
    for place in (0, size // 2, size - 1):  # the largest at either end, and ids that a constraint refuses
        values = torch.full((size,), -torch.inf)
        values[place] = 2.0
        assert top_two(values).tolist() == [2.0, -torch.inf]
    ids = topk(values, 4)[1]
    assert len(set(ids.flatten().tolist())) == 4
    assert bool(topk(torch.full((1, 1, size), wrong), 2)[0].isfinite().logical_not().all())
