"""The greatest logits and their ids, by every way that they are searched, against a sort."""

from collections.abc import Iterator

import pytest
import torch

from specdec.backends.output import Output
from specdec.sampling.topk import host_top_lists, top_ids, top_lists, top_two, topk

SIZES = [7, 256, 300, 4096, 5000, 49152]


@pytest.fixture
def defaults() -> Iterator[None]:
    """Defaults for new tensors that no result may depend on."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 2, 8, 100])
def test_they_are_those_of_a_sort(dtype: torch.dtype, size: int, k: int) -> None:
    values = torch.randn(2, 9, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    found, ids = topk(values, k)
    assert (found.dtype, ids.dtype) == (dtype, torch.long)
    assert top_lists(values, k) == (ids.tolist(), found.tolist())
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
    lists, is_searched_by_numpy = host_top_lists(values, 3), dtype == torch.float32 and size >= 1024
    assert lists == (([[[3, size - 1, 0], [0, 1, 2]]], [[[1, 1, 0], [0, 0, 0]]]) if is_searched_by_numpy else None)
    assert top_ids(values) == [[3, 0]]
    assert top_two(values[0, 0]).tolist() == [1, 1]
    output = Output(values, range(2))
    output.num_top = 3
    assert [output.top_id(0, node) for node in range(2)] == [3, 0]
    assert (3 in output._top_logits) == is_searched_by_numpy, "one search finds both"
    ids, found = output.top_logits(3)
    assert found == [[[1, 1, 0], [0, 0, 0]]]
    assert values[0].gather(-1, torch.tensor(ids[0])).tolist() == found[0]


@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("num_above", [0, 3, 12])
def test_the_first_of_many_equals_are_found_in_the_values_own_type(num_above: int) -> None:
    values = torch.zeros(2, 2, 5000, dtype=torch.float32, device="cpu")
    values[1, 0, 4000 : 4000 + num_above] = 1 + 2**-20  # not a number in bfloat16
    found, ids = topk(values, 8)
    assert found.dtype == torch.float32
    best = [*range(4000, 4000 + num_above), *range(8)][:8]
    assert ids.tolist() == [[[*range(8)]] * 2, [best, [*range(8)]]]
    assert torch.equal(found, values.gather(-1, ids))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, -1])
def test_what_is_no_number_is_found(size: int, wrong: float, at: int) -> None:
    values = torch.randn(1, 1, size)
    values[..., at] = wrong
    assert wrong < 0 or host_top_lists(values, 4) is None
    assert bool(topk(values, 1)[0].isfinite()) == (wrong < 0)
    assert (top_ids(values)[0][0] >= 0) == (wrong < 0)
    for place in (0, size // 2, size - 1):  # the largest at either end, and ids that a constraint refuses
        values = torch.full((size,), -torch.inf)
        values[place] = 2.0
        assert top_two(values).tolist() == [2.0, -torch.inf]
    ids = topk(values, 4)[1]
    assert len(set(ids.flatten().tolist())) == 4
    assert bool(topk(torch.full((1, 1, size), wrong), 2)[0].isfinite().logical_not().all())
