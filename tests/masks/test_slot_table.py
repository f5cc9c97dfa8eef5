"""Attention by slot tables: its numbers, its bits, and the models and backends that use it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdec import DraftTree, Generator
from specdec.backends.hf import HFBackend
from specdec.backends.static import StaticBackend
from specdec.layout import Shapes, Window
from specdec.machine.cuda_graphs import GraphInputs
from specdec.masks.base import AttentionKind
from specdec.masks.slot_table.compiler import SlotTableCompiler
from specdec.masks.slot_table.kernel import SlotTable, attend_by_torch
from specdec.runtime.probes.products import Products
from specdec.runtime.probes.walk import walk
from specdec.target import Target
from specdec.testing import check_backend
from tests.laws.test_backend_laws import plain_of
from tests.support import families
from tests.support.examined import examined

WINDOWS: dict[str, Window | None] = {
    "full_attention": None,
    "sliding_attention": Window("sliding", 40),
    "chunked_attention": Window("chunked", 30),
}
HEADS, GROUPS, SIZE, VALUE_SIZE, SLOTS = 6, 3, 24, 40, 320
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AttentionKind], torch.Tensor]


def grown(num_nodes: int, seed: int) -> DraftTree:
    """A random tree."""
    rng, tree = random.Random(seed), DraftTree(0)
    while len(tree) < num_nodes:
        tree.add(rng.randrange(len(tree)), rng.randrange(1000))
    return tree


def tables(trees: list[DraftTree], lengths: list[int]) -> dict[str, SlotTable]:
    shapes = Shapes(1000, None, True, WINDOWS, torch.float32, torch.device("cpu"))
    return SlotTableCompiler().compile(trees, lengths, shapes).masks  # type: ignore[return-value]  # its own masks


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, kind: AttentionKind
) -> torch.Tensor:
    """Attention in float64 over the slots that each node sees, whatever their order: the kernels' definition."""
    k, v = (states.double().repeat_interleave(HEADS // GROUPS, 1) for states in (k, v))
    scores = q.double() @ k.mT * kind.scale
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    if kind.sinks is not None:
        sinks = kind.sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return (torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def check_numbers(attend: Attend) -> None:
    """Compare a kernel with the definition, for ragged rows, windows, soft caps and sinks."""
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, HEADS, 7, SIZE, generator=draw)
    k, v = (torch.randn(2, GROUPS, SLOTS, size, generator=draw) for size in (SIZE, VALUE_SIZE))
    for name, table in tables([grown(7, 0), grown(5, 1)], [290, 61]).items():
        seen = torch.nn.functional.pad(table.visible(), (0, SLOTS - table.visible().shape[2]))
        for kind in (AttentionKind(0.2, None, None), AttentionKind(0.2, 5.0, torch.randn(HEADS, generator=draw))):
            found = attend(q, k, v, table.as_subclass(torch.Tensor)[:, 0], kind)
            torch.testing.assert_close(found.double(), expected(q, k, v, seen, kind), atol=1e-5, rtol=1e-5, msg=name)


def test_the_sum_is_over_what_a_node_sees() -> None:
    check_numbers(attend_by_torch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_kernels_compute_the_same_on_a_gpu() -> None:
    from specdec.masks.slot_table.gpu_kernel import attend

    def on_gpu(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, kind: AttentionKind
    ) -> torch.Tensor:
        sinks = None if kind.sinks is None else kind.sinks.cuda()
        return attend(q.cuda(), k.cuda(), v.cuda(), table.cuda(), kind._replace(sinks=sinks)).cpu()

    check_numbers(on_gpu)


def test_bits_depend_on_neither_the_tree_nor_the_batch_nor_the_cache() -> None:
    draw = torch.Generator().manual_seed(0)
    length, size = 300, 16
    path = [torch.randn(1, GROUPS, 1, SIZE, generator=draw) for _ in range(4)]  # keys of nodes 0 … 3 of the chain
    queries = [torch.randn(1, HEADS, 1, SIZE, generator=draw) for _ in range(4)]
    committed = torch.randn(1, GROUPS, length, SIZE, generator=draw)
    chain = DraftTree(0)
    chain.add_chain(0, range(1, 4))
    branching = DraftTree(0)
    branching.add_chain(0, range(500, 500 + size))
    nodes = [0, *branching.add_chain(0, range(1, 4))]
    assert nodes[1] > size

    def attended(tree: DraftTree, own: list[int], rows: int, num_slots: int) -> list[torch.Tensor]:
        keys = torch.randn(rows, GROUPS, num_slots, SIZE, generator=draw)
        q = torch.randn(rows, HEADS, len(tree), SIZE, generator=draw)
        keys[-1, :, :length] = committed[0]
        for node, key, query in zip(own, path, queries, strict=True):
            keys[-1, :, length + node], q[-1, :, node] = key[0, :, 0], query[0, :, 0]
        table = tables([grown(len(tree), 5)] * (rows - 1) + [tree], [40] * (rows - 1) + [length])["full_attention"]
        found = attend_by_torch(q, keys, keys, table.as_subclass(torch.Tensor)[:, 0], AttentionKind(0.2, None, None))
        return [found[-1, node] for node in own]

    plain = attended(chain, [0, 1, 2, 3], 1, 304)
    for tree, own, rows, num_slots in (
        (branching, nodes, 1, 400),
        (branching, nodes, 3, 1024),
        (chain, [*range(4)], 2, 513),
    ):
        for one, alone in zip(attended(tree, own, rows, num_slots), plain, strict=True):
            assert torch.equal(one, alone)


def have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compilers take this device for a GPU with Triton."""
    for name in ("exact", "slot_table"):
        monkeypatch.setattr(f"specdec.masks.{name}.compiler.has_kernels", lambda _: True)


@pytest.mark.parametrize("backend", [HFBackend, StaticBackend])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])  # full attention; windows and others; sinks
def test_models_take_trees_with_it(family: str, backend: type[HFBackend]) -> None:
    loaded = examined(backend.load(families.make(*families.TREES[family]), SlotTableCompiler()))
    assert loaded.shapes.takes_trees
    assert not loaded.examination.reason


@pytest.mark.parametrize("backend", [HFBackend, StaticBackend])
def test_a_backend_keeps_its_laws_with_it(backend: type[HFBackend]) -> None:
    model = families.make(*families.TREES["gemma3"])
    loaded = examined(backend.load(model, SlotTableCompiler()))
    check_backend(loaded, plain_of(model), loaded.compiler, seed=3)


def test_models_on_gpus_are_driven_exactly_by_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make(*families.TREES["llama"])
    have_kernels(monkeypatch)
    monkeypatch.setattr("specdec.backends.static._place_of_all", lambda _: "cuda")
    with Generator(model, numerics="exact") as generator:
        assert (generator.mask, generator.weights.engine) == (SlotTableCompiler(), "static")
        assert generator.numerics.is_bit_exact
        drafts = generator.generate([1, 2, 3, 1, 2, 3], max_new_tokens=12).token_ids
    with Generator(model, backend="hf", proposer="autoregressive", mask="slot_table") as plain:
        assert plain.generate([1, 2, 3, 1, 2, 3], max_new_tokens=12).token_ids == drafts


def test_a_model_that_static_shapes_refuse_is_driven_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.backends.static._place_of_all", lambda _: "cuda")
    with Generator(families.make(*families.CHAINS["mpt"]), numerics="fast") as generator:
        assert generator.weights.engine == "hf"


def test_walks_through_every_kind_of_pass_find_no_other_bits() -> None:
    compiler = SlotTableCompiler()
    backend = examined(HFBackend.load(families.make(*families.TREES["llama"]).double(), compiler))
    assert not walk(Target(backend, compiler)).result().inexact


def test_passes_over_other_numbers_of_rows_share_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, call = set[tuple[int, int]](), StaticBackend._call

    def noting(self: StaticBackend, inputs: GraphInputs, *others: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        shapes.add(tuple(inputs.numbers["input_ids"].shape))
        return call(self, inputs, *others, **named)

    monkeypatch.setattr(StaticBackend, "_call", noting)
    model, prompts = families.make(*families.TREES["llama"]), [[1, 2, 3], [4, 5], [6]]
    with Generator(model, backend="static", mask="slot_table", proposer="autoregressive") as generator:
        alone = [generator.generate(prompt, max_new_tokens=8).token_ids for prompt in prompts]
        shapes.clear()
        assert [result.token_ids for result in generator.generate(prompts, max_new_tokens=8)] == alone
    assert {rows for rows, _ in shapes} == {1, 4}  # prompts, and steps of all three


@pytest.mark.usefixtures("no_findings")
def test_what_makes_products_exact_on_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    have_kernels(monkeypatch)
    dependent = Products(1, 64, "a row of a product with a 64 by 32 matrix depends on the number of rows")
    monkeypatch.setattr("specdec.runtime.probes.examination.products_of", lambda *_: dependent)
    with Generator(families.make(*families.TREES["llama"])) as generator:
        assert generator.numerics.mode == "fast"
        assert generator.numerics.inexact.startswith("exact numerics are unavailable: a row of a product")
        assert "numerics='exact' computes linear layers by a kernel of its own" in generator.numerics.inexact
