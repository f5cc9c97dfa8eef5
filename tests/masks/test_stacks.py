"""Rows side by side share their products, and each has the bits that it has alone."""

import numpy as np
import pytest
import torch

from specdec import DraftTree
from specdec.layout import Shapes, Window
from specdec.masks.exact.compiler import ExactCompiler
from specdec.masks.exact.kernel import exact_attention
from specdec.masks.exact.stacks import stacks_of
from tests.masks.test_exact import DTYPES, KIND, random_tree

PREFIXES = (0, 3, 31, 150, 158, 190, 254, 500)


def attended(states: list[torch.Tensor], trees: list[DraftTree], lengths: list[int], shapes: Shapes) -> torch.Tensor:
    mask = ExactCompiler().compile(trees, lengths, shapes).masks[KIND]
    slots = mask.shape[-1]
    query, key, value = states
    width = mask.shape[2]
    return exact_attention(torch.nn.Module(), query[:, :, :width], key[:, :, :slots], value[:, :, :slots], mask)[0]


@pytest.mark.parametrize("window", [None, Window("sliding", 9), Window("chunked", 100)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rows_bits_are_those_that_it_has_alone(dtype: torch.dtype, window: Window | None) -> None:
    num_closed = 0
    for seed in range(12):
        rng, draws = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        num_rows, groups, heads = int(rng.integers(2, 9)), int(rng.choice([1, 3])), int(rng.choice([1, 3, 4]))
        size = int(rng.choice([8, 32, 64]))
        shapes = Shapes(100, None, True, {KIND: window}, dtype, torch.device("cpu"))
        sizes = rng.choice([1, 1, 2, 7, 30], size=num_rows) if seed % 3 else [1] * num_rows
        trees = [random_tree(rng, int(each)) for each in sizes]
        lengths = rng.choice(PREFIXES, size=num_rows).tolist()
        width, slots = max(map(len, trees)), max(lengths) + max(map(len, trees))
        states = [
            torch.randn(num_rows, *shape, generator=draws).to(dtype)
            for shape in ((groups * heads, width, size), (groups, slots, size), (groups, slots, size))
        ]
        together = attended(states, trees, lengths, shapes)
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            own = [part[row : row + 1] for part in states]
            alone = attended(own, [tree], [length], shapes)
            assert torch.equal(together[row, : len(tree)], alone[0, : len(tree)]), (seed, row)
            num_closed += length > 160 and window is None
    assert num_closed > 10 or window is not None


def test_rows_that_differ_in_length_are_stacked_apart() -> None:
    draws = torch.Generator().manual_seed(4)
    shapes = Shapes(100, None, True, {KIND: None}, torch.float32, torch.device("cpu"))
    lengths = [int(length) for length in torch.randint(5, 300, (24,), generator=draws)]
    trees = [DraftTree(0) for _ in lengths]
    states = [torch.randn(24, *shape, generator=draws) for shape in ((6, 1, 64), (3, 300, 64), (3, 300, 64))]
    mask = ExactCompiler().compile(trees, lengths, shapes).masks[KIND]
    stacks, alone = stacks_of(mask.regions, 2, 3 * 64, 4, 32)  # type: ignore[attr-defined]
    assert len(stacks) > 1
    assert sorted(region.row for regions in (alone, *(each.regions for each in stacks)) for region in regions) == [
        *range(24)
    ]
    together = attended(states, trees, lengths, shapes)
    for row, length in enumerate(lengths):
        alone = attended([part[row : row + 1] for part in states], trees[:1], [length], shapes)
        assert torch.equal(together[row], alone[0]), row


def test_padding_that_is_no_number_reaches_no_other_row() -> None:
    shapes = Shapes(100, None, True, {KIND: None}, torch.float32, torch.device("cpu"))
    states = [torch.randn(2, 4, 1, 8), torch.randn(2, 2, 60, 8), torch.randn(2, 2, 60, 8)]
    states[2][1, :, 40:] = torch.nan  # behind the second row's own slots
    output = attended(states, [DraftTree(0), DraftTree(0)], [59, 30], shapes)
    assert output.isfinite().all()
