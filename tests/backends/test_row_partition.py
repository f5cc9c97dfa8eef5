"""Parts of a batch: the cheapest of all partitions, each row whole and in order, and read as far as it is seen."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.backends import grouped_attention
from specdec.backends.grouped_attention import partition_rows, visible_lengths
from specdec.layout import Shapes
from specdec.masks.dense import DenseCompiler
from specdec.tree import DraftTree
from tests.backends.test_grouped_attention import Module

SHAPES = Shapes(9, None, True, {"full_attention": None}, torch.float32, torch.device("cpu"))
CALL = 65_536  # numbers, in place of which a call may be made


def cost(lengths: list[int], slot_size: int, parts: list[tuple[slice, int]]) -> float:
    return sum(CALL / slot_size + len(lengths[rows]) * max(lengths[rows]) for rows, _ in parts)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=8), st.sampled_from([32, 192, 1024, 8192]))
def test_no_partition_of_the_rows_costs_less(lengths: list[int], slot_size: int) -> None:
    found = partition_rows(lengths, slot_size)
    assert [row for rows, _ in found for row in range(len(lengths))[rows]] == list(range(len(lengths)))
    assert [num_slots for _, num_slots in found] == [max(lengths[rows]) for rows, _ in found]
    partitions = [
        [slice(start, stop) for start, stop in zip((0, *cuts), (*cuts, len(lengths)), strict=True)]
        for count in range(len(lengths))
        for cuts in combinations(range(1, len(lengths)), count)
    ]
    least = min(cost(lengths, slot_size, [(rows, 0) for rows in partition]) for partition in partitions)
    assert cost(lengths, slot_size, found) == pytest.approx(least)


def test_one_long_row_among_short_ones_is_attended_alone() -> None:
    assert partition_rows([50, 52, 900, 51, 49], 1024) == [(slice(0, 2), 52), (slice(2, 3), 900), (slice(3, 5), 51)]
    assert partition_rows([50, 52, 51, 49], 1024) == [(slice(0, 4), 52)]


def test_rows_end_behind_their_nodes() -> None:
    trees = [DraftTree(1), DraftTree(2), DraftTree(3)]
    trees[1].add_chain(0, [5, 6])
    mask = DenseCompiler().compile(trees, [30, 4, 0], SHAPES).masks["full_attention"]
    assert mask.shape == (3, 1, 3, 33)
    assert visible_lengths(mask) == [33, 7, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "width"), [(32, 8, 1), (32, 8, 3), (8, 8, 1), (8, 8, 2)])
def test_what_lies_behind_a_row_s_end_doesn_t_count(dtype: torch.dtype, heads: int, groups: int, width: int) -> None:
    noise = torch.Generator().manual_seed(heads + width)
    lengths = [40, 700, 30, 35]
    query = torch.randn(4, heads, width, 128, generator=noise).to(dtype)
    key, value = (torch.randn(4, groups, 700, 128, generator=noise).to(dtype) for _ in range(2))
    mask = torch.full((4, 1, width, 700), torch.finfo(dtype).min, dtype=dtype)
    for row, end in enumerate(lengths):
        mask[row, :, :, :end] = 0
    for rows, num_slots in partition_rows(visible_lengths(mask), groups * 128):
        for states in (key, value):
            states[rows, :, num_slots:] = torch.nan  # shows in sums that go on, even with a weight of 0
    assert key.isnan().any()
    output, _ = grouped_attention.grouped_attention(Module(heads // groups), query, key, value, mask, scaling=0.1)
    assert output.shape == (4, width, heads, 128)
    for row, end in enumerate(lengths):
        keys, values = (each[row, :, :end].float().repeat_interleave(heads // groups, 0) for each in (key, value))
        weights = torch.softmax(query[row].float() @ keys.transpose(1, 2) * 0.1, -1)
        expected = (weights @ values).transpose(0, 1)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(output[row].float(), expected, atol=tolerance, rtol=0)
