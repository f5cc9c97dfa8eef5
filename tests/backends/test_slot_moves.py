"""Accepted nodes are moved in one launch, as layer by layer."""

import sys
from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch

from specdec.backends import static_cache
from specdec.backends.cache import RaggedCache, RaggedLayer
from specdec.backends.placement import Placement
from specdec.backends.static_cache import StaticPlacement, StaticRaggedCache
from tests.support.triton_interpreter import needs_triton, run_interpreted

SHAPES = ((3, 2, 120, 12), (3, 4, 120, 16))  # rows, heads, slots and size of the two layers' buffers
PATHS = {0: [21, 22, 25], 1: [*range(20, 100)], 2: [119]}  # slots by row


def check_moves() -> None:
    """Compare a launch with copies layer by layer, in every size of number; sources overlap with destinations."""
    from specdec.backends.slot_moves import SlotMoves

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]  # a process of its own, without a GPU
    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        layers = [RaggedLayer(Placement()) for _ in SHAPES]
        for layer, shape in zip(layers, SHAPES, strict=True):
            layer.keys, layer.values = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
        buffers = [buffer.clone() for layer in layers for buffer in (layer.keys, layer.values)]
        SlotMoves(buffers).move([(row, 19, path) for row, path in PATHS.items()])
        for number, layer in enumerate(layers):
            for row, path in PATHS.items():
                layer.gather(row, torch.tensor(path), 19)
            assert torch.equal(buffers[2 * number].float(), layer.keys.float())
            assert torch.equal(buffers[2 * number + 1].float(), layer.values.float())


@needs_triton
def test_a_launch_moves_what_layers_move() -> None:
    run_interpreted("from tests.backends.test_slot_moves import check_moves\ncheck_moves()")


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_it_is_compiled_without_spills(capability: int) -> None:
    import triton.language as tl

    from specdec.backends.slot_moves import _NUM_FACTS, _NUM_HEADER, _SLOTS, _move
    from tests.support.triton_ahead import compiled

    constants = {
        "NUM_FACTS": _NUM_FACTS, "NUM_HEADER": _NUM_HEADER, "SLOTS": _SLOTS, "BLOCK": 128, "INTEGER": tl.int16
    }  # fmt: skip
    types = {"buffers": "*i64", "moves": "*i64", "move_stride": "i32"}
    assert compiled(_move, types, constants, capability, num_warps=4).stack == 0


Move = tuple[int, int, list[int]]


class Moves:
    """Moves layer by layer, as the kernel does in one launch, of what its launches were given."""

    launches: ClassVar[list[list[Move]]] = []

    def __init__(self, buffers: list[torch.Tensor]) -> None:
        self._buffers = buffers

    def move(self, moves: list[Move]) -> None:
        self.launches.append(moves)
        assert len({row for row, _, _ in moves}) == len(moves)
        for row, to, slots in moves:
            for buffer in self._buffers:
                buffer[row, :, to : to + len(slots)] = buffer[row, :, slots].clone()


def refused(_: object) -> None:
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize("moves", [Moves, refused])
def test_a_commit_moves_all_rows_at_once_or_layer_by_layer(monkeypatch: pytest.MonkeyPatch, moves: Any) -> None:
    monkeypatch.setattr(Moves, "launches", [])
    monkeypatch.setattr(static_cache, "has_kernels", lambda _: True)
    monkeypatch.setitem(sys.modules, "specdec.backends.slot_moves", Mock(SlotMoves=moves))
    caches = [StaticRaggedCache(2, StaticPlacement()), RaggedCache(2)]
    for cache in caches:
        draw = torch.Generator().manual_seed(0)
        for layer in cache.layers:
            layer.lazy_initialization(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
            layer.keys, layer.values = (torch.randn(3, 2, 200, 4, generator=draw) for _ in range(2))
        cache.lengths, cache.reached = [10, 20, 5], [200, 200, 200]
        for row, path in enumerate(([0, 2, 5], [0, *range(3, 90)], [0, 1])):
            cache.commit(row, path)
    caches[0].move_waiting()
    assert len(Moves.launches) == (1 if moves is Moves else 0)
    for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
