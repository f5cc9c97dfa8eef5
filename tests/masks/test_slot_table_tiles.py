"""Attention by slot tables on GPUs: tiles of nodes, under Triton's interpreter and compiled ahead of time."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import DraftTree
from specdec.layout import Shapes, Window
from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.masks.slot_table.kernel import attend_by_torch
from tests.support.triton_interpreter import needs_triton, run_interpreted

WINDOWS: dict[str, Window | None] = {"full": None, "sliding": Window("sliding", 70), "chunked": Window("chunked", 90)}
WAYS = {"split": 2**24, "whole": 0}  # the most numbers that a split pass may write
# A score of n is a factor of two to the power of n; with the sinks chunks are merged inexactly.
BINARY = AttentionKind(math.log(2), None, torch.tensor([0.3, -0.9, 1.7, 0.1, -1.2]))


def tree_of(parents: Sequence[int]) -> DraftTree:
    """Return a tree by the parents of its nodes, from the root's first child on."""
    tree = DraftTree(0)
    for node, parent in enumerate(parents, 1):
        tree.add(parent, node)
    return tree


CHAIN = tree_of([*range(5)])
BUSHY = tree_of([0, 1, 0, 3, 3, 2])  # its first nodes are a chain


def tables(trees: list[DraftTree], lengths: list[int]) -> list[torch.Tensor]:
    """The table of each window, (rows, width, 4 + listed)."""
    shapes = Shapes(1000, None, True, WINDOWS, torch.float32, torch.device("cpu"))
    masks = SlotTableCompiler().compile(trees, lengths, shapes).masks
    return [mask.as_subclass(torch.Tensor)[:, 0] for mask in masks.values()]


def attended(way: str, q: torch.Tensor, *others: torch.Tensor, kind: AttentionKind = BINARY) -> torch.Tensor:
    """Attention by the kernels, in a process of its own without a GPU."""
    from specdec.masks.slot_table import gpu_kernel

    torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]
    gpu_kernel._MOST_NUMBERS = WAYS[way]
    return gpu_kernel.attend(q, *others, kind)


def states(heads: int, groups: int, width: int, slots: int, sizes: tuple[int, int] = (16, 24)) -> list[torch.Tensor]:
    """Random queries, keys and values of two rows, in float32."""
    draw = torch.Generator().manual_seed(width + slots)
    shapes = (heads, width, sizes[0]), (groups, slots, sizes[0]), (groups, slots, sizes[1])
    return [torch.randn(2, *shape, generator=draw) for shape in shapes]


def exact_states(*shape: int) -> list[torch.Tensor]:
    """Whole numbers whose scores are small: sums over a chunk are exact with ``BINARY``, so equal in any order.

    The interpreter's products are numpy's, whose bits depend on a row's place, as those of tensor cores don't.
    """
    q, k, v = (each.mul(2).round().clamp(-most, most) for each, most in zip(states(*shape), (1, 1, 4), strict=True))
    q[..., 3:] = 0
    return [q, k, v]


def check_numbers() -> None:
    """Compare both ways with torch, for a tree and a shorter chain, over several chunks."""
    draw = torch.Generator().manual_seed(0)
    for number, (dtype, heads, groups, sizes) in enumerate((
        (torch.float32, 4, 2, (48, 80)),
        (torch.float16, 6, 1, (64, 64)),
        (torch.float16, 1, 1, (96, 16)),
    )):  # fmt: skip
        sinks = torch.randn(heads, generator=draw)
        kinds = AttentionKind(0.2), AttentionKind(0.3, 5.0), AttentionKind(0.2, None, sinks)
        q, k, v = (each.to(dtype) for each in states(heads, groups, len(BUSHY), 530, sizes))
        tolerance = 1e-5 if dtype == torch.float32 else 3e-3
        for turn, table in enumerate(tables([BUSHY, CHAIN], [509, 250]), number):
            kind, way = kinds[turn % 3], [*WAYS][turn % 2]
            found, expected = attended(way, q, k, v, table, kind=kind), attend_by_torch(q, k, v, table, kind)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance, msg=f"{dtype} {turn} {way}")


def check_nodes(parents: Sequence[int], lengths: list[int], dtype: torch.dtype, window: int = 0) -> None:
    """A node has the same bits alone and among others, in a split pass and in a whole one."""
    trees = [tree_of(parents), tree_of([*range(len(parents) // 2)])]
    q, k, v = (each.to(dtype) for each in exact_states(5, 1, len(trees[0]), max(lengths) + len(trees[0])))
    table = tables(trees, lengths)[window]
    split, whole = (attended(way, q, k, v, table) for way in WAYS)
    assert torch.equal(split, whole)
    torch.testing.assert_close(whole, attend_by_torch(q, k, v, table, BINARY), atol=2e-3, rtol=1e-3)
    for node, way in zip((0, len(parents) // 2, len(parents)), ("split", "whole", "split"), strict=True):
        own = slice(node, node + 1)
        assert torch.equal(attended(way, q[:, :, own], k, v, table[:, own]), whole[:, own]), f"node {node} {way}"


def check_trees() -> None:
    check_nodes(BUSHY.parents[1:], [509, 250], torch.float32)
    check_nodes(BUSHY.parents[1:], [60, 4], torch.float16)  # in one chunk
    parents = st.integers(1, 7).flatmap(lambda n: st.tuples(*(st.integers(0, node) for node in range(n))))

    @settings(max_examples=3, deadline=None, database=None)
    @given(parents, st.integers(0, 300), st.integers(246, 257), st.integers(0, 2))
    def check(parents: tuple[int, ...], first: int, second: int, window: int) -> None:
        check_nodes(parents, [first, second], torch.float16, window)

    check()


@needs_triton
def test_tiles_under_tritons_interpreter() -> None:
    names = "check_numbers, check_trees"
    run_interpreted(f"from tests.masks.test_slot_table_tiles import {names}\nfor check in {names}: check()")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("most", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_nodes_have_bits_of_their_own_on_a_gpu(dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from specdec.masks.slot_table import gpu_kernel

    monkeypatch.setattr(gpu_kernel, "_MOST_NUMBERS", most)
    tree, kind = tree_of([node // 2 for node in range(39)]), AttentionKind(0.2)
    q, k, v = (each.to("cuda", dtype) for each in states(8, 2, len(tree), 700, (64, 64)))
    for table in tables([tree, CHAIN], [609, 250]):
        on_gpu = table.cuda()
        together = gpu_kernel.attend(q, k, v, on_gpu, kind)
        for node in range(len(tree)):
            own = slice(node, node + 1)
            assert torch.equal(gpu_kernel.attend(q[:, :, own], k, v, on_gpu[:, own], kind), together[:, own])


POINTERS: dict[str, str] = dict.fromkeys(("query", "key", "value", "sinks", "out"), "*bf16")
POINTERS |= {"table": "*i32", "acc_out": "*fp32", "norm_out": "*fp32", "scale": "fp32", "softcap": "fp32"}
STRIDES = [f"{name}_{part}" for name, part in product("qkv", ("row", "head", "node", "group", "slot"))]
TYPES = POINTERS | dict.fromkeys([*STRIDES, "t_row", "t_node", "width", "num_chunks"], "i32")


def tiles() -> Iterator[Any]:
    """Yield a capability, nodes of a tile, the instruction of its products, and whether it is split; half by day."""
    ways = [(80, 16, "mma.sync"), (90, 4, "mma.sync"), (90, 16, "wgmma"), (100, 4, "mma.sync")]
    for index, (way, is_split) in enumerate(product(ways, [True, False])):
        yield pytest.param(*way, is_split, marks=[pytest.mark.nightly] if index in {1, 2, 5, 6} else [])


@needs_triton
@pytest.mark.parametrize(("capability", "nodes", "expected", "is_split"), [*tiles()])
def test_tiles_are_compiled_without_spills(capability: int, nodes: int, expected: str, is_split: bool) -> None:
    from specdec.masks.slot_table.gpu_kernel import _attend
    from tests.support.triton_ahead import compiled

    constants = {
        "HEADS": 4, "NODES": nodes, "ROWS": 4 * nodes, "KEY": 128, "KEYS": 128, "VALUE": 128, "VALUES": 128,
        "CHUNK": 256, "BLOCK": 64, "OWN": 1, "IS_SPLIT": is_split, "IS_FINAL": not is_split, "HAS_CAP": False,
        "HAS_SINKS": False,
    }  # fmt: skip
    options = {"num_warps": 8 if nodes == 16 and not is_split else 4, "num_stages": 2, "enable_fp_fusion": False}
    made = compiled(_attend, TYPES, constants, capability, STRIDES, **options)
    assert made.stack <= (64 if capability == 80 else 0)  # a few registers where queries are in registers, too
    assert made.shared <= 100 * 1024  # consumers' GPUs have no more
    assert made.instruction == expected
    assert "cp.async.cg" in made.ptx  # a block is read, 16 bytes at a time, while the one before it is multiplied
    assert "cp.async.ca" not in made.ptx
    assert "fma.rn" not in made.ptx  # whether sums are fused might depend on the tile


@needs_triton
def test_merging_is_compiled_without_spills() -> None:
    from specdec.masks.slot_table.gpu_kernel import _merge
    from tests.support.triton_ahead import compiled

    types = TYPES | {"acc_in": "*fp32", "norm_in": "*fp32", "num_heads": "i32"}
    constants = {"VALUE": 128, "VALUES": 128, "CHUNK": 256, "HAS_SINKS": True}
    made = compiled(_merge, types, constants, 90, num_warps=1, enable_fp_fusion=False)
    assert made.stack == 0
    assert made.loads_wide
    assert "fma.rn" not in made.ptx
