"""Accepted nodes are moved in one launch, as layer by layer."""

from contextlib import nullcontext

import pytest
import torch

from specdec.backends.cache import RaggedLayer
from specdec.backends.placement import Placement
from tests.support.triton_interpreter import needs_triton, run_interpreted

SHAPES = ((3, 2, 120, 12), (3, 4, 120, 16))  # rows, heads, slots and size of the two layers' buffers
PATHS = ([21, 22, 25], [20, 21, 22, 23, 24], [119], list(range(21, 70)))


def check_moves() -> None:
    """Compare a launch with copies layer by layer, in every size of number; sources overlap with destinations."""
    from specdec.backends.slot_moves import SlotMoves

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]  # a process of its own, without a GPU
    draw = torch.Generator().manual_seed(0)
    dtypes = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float16
    for dtype, path in zip(dtypes, PATHS, strict=True):
        layers = [RaggedLayer(Placement()) for _ in SHAPES]
        for layer, shape in zip(layers, SHAPES, strict=True):
            layer.keys, layer.values = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
        buffers = [buffer.clone() for layer in layers for buffer in (layer.keys, layer.values)]
        slots = torch.tensor(path)
        SlotMoves(buffers).move(1, slots, 19)
        for number, layer in enumerate(layers):
            layer.gather(1, slots, 19)
            assert torch.equal(buffers[2 * number].float(), layer.keys.float())
            assert torch.equal(buffers[2 * number + 1].float(), layer.values.float())


@needs_triton
def test_a_launch_moves_what_layers_move() -> None:
    run_interpreted("from tests.backends.test_slot_moves import check_moves\ncheck_moves()")


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("num_nodes", [16, 32])
def test_it_is_compiled_without_spills(capability: int, num_nodes: int) -> None:
    import triton.language as tl

    from specdec.backends.slot_moves import _move
    from tests.support.triton_ahead import compiled

    types = {"buffers": "*i64", "slots": "*i64", **dict.fromkeys(("row", "to", "count"), "i32")}
    constants = {"NUM_FACTS": 6, "NODES": num_nodes, "BLOCK": 128, "INTEGER": tl.int16}
    made = compiled(_move, types, constants, capability, num_warps=4)
    assert made.stack == 0
