"""The kernel that draws tokens, under Triton's interpreter and compiled ahead of time."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.support.plain import keyed_gumbel
from tests.support.triton_interpreter import needs_triton, run_interpreted


def check_draws() -> None:
    """Compare draws with the documented noise, for vocabularies of odd sizes, padded logits and the largest seed."""
    from specdec.sampling.keyed_draws import draw

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]  # a process of its own, without a GPU
    seeds, temperatures = torch.tensor([5, 2**63 - 1]), torch.tensor([0.8, 1.3], dtype=torch.float64)
    positions = torch.tensor([[4, 5, 100_000], [100, 101, 7]])
    for size, dtype in ((37, torch.float32), (2500, torch.float16)):
        logits = torch.randn(2, 3, size + 3, generator=torch.Generator().manual_seed(size)).to(dtype)[..., :size]
        found = draw(logits, positions, seeds, temperatures).tolist()
        for row in range(2):
            for column in range(3):
                noise = torch.from_numpy(keyed_gumbel(int(seeds[row]), int(positions[row, column]) + 1, size))
                scores = logits[row, column].double() / temperatures[row] + noise
                assert found[row][column] == int(scores.argmax())
    hidden = torch.full((1, 1, 40), -torch.inf)
    hidden[..., 17] = 0.0
    assert draw(hidden, positions[:1, :1], seeds[:1], temperatures[:1]).item() == 17


@needs_triton
def test_draws_are_those_of_the_documented_noise() -> None:
    run_interpreted("from tests.sampling.test_keyed_draws import check_draws\ncheck_draws()")


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_it_is_compiled_without_spills(capability: int, dtype: str) -> None:
    from specdec.sampling.keyed_draws import _BLOCK, _draw
    from tests.support.triton_ahead import compiled

    types: dict[str, Any] = dict.fromkeys(
        ("vocab_size", "part", "num_columns", "row_stride", "column_stride"), "i32"
    ) | {"logits": f"*{dtype}", "positions": "*i64", "seeds": "*i64", "temperatures": "*fp64", "best_out": "*fp64"}
    types["token_out"] = "*i32"
    made = compiled(_draw, types, {"BLOCK": _BLOCK}, capability, num_warps=4)
    assert made.stack == 0
