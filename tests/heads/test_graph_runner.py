"""Drafts of fixed shapes: the trees that the host grows, in any batch, replayed, and never from memory that moved."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specdec import Generator
from specdec.backends.hf import HFBackend
from specdec.heads import graph_runner
from specdec.heads.base import HeadRunners, Noise
from specdec.heads.drafting import DraftedTrees, DraftSize, begin, grow
from specdec.heads.graph_runner import GraphRunner, runner_by_torch
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner
from specdec.machine import cuda_graphs
from tests.support.generators import proposer_of
from tests.support.pretend_device import NAME, pretend_device
from tests.support.random_heads import VARIANTS, random_eagle_head, random_head

WIDTH_DEPTH_NODES = (3, 3, 12), (1, 4, 4), (4, 2, 9)


class StaleRunner(GraphRunner):
    """Begins each draft in memory whose other slots are arbitrary."""

    def _make_room(self, num_rows: int, num_slots: int) -> None:
        super()._make_room(num_rows, num_slots)
        for each in self._memory:
            each.fill_(10.0)


class PretendGraph:
    """Replays a pass as a CUDA graph does: with the inputs' own tensors, and the memory of when it was captured."""

    num_replays = 0

    def __init__(self, run: Callable[[Any], Any], inputs: Any, pool: Any) -> None:
        self._run, self._inputs = run, inputs.owned()
        self._runner: Any = run.func.__self__  # type: ignore[attr-defined]  # a partial of a method
        self._memory = self._runner._memory

    def __call__(self, inputs: Any) -> Any:
        type(self).num_replays += 1
        self._inputs.copy_(inputs)
        now, self._runner._memory = self._runner._memory, self._memory
        outputs = self._run(self._inputs)
        self._runner._memory = now
        return outputs


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[PretendGraph]:
    """Pretended graphs in place of CUDA's; a runner replays them once its graphs capture."""
    monkeypatch.setattr(cuda_graphs, "Graph", PretendGraph)
    monkeypatch.setattr(cuda_graphs, "Pool", Mock())
    monkeypatch.setattr(PretendGraph, "num_replays", 0)
    return PretendGraph


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def drawn_pairs(
    head: PairHead, counts: Sequence[int], draw: torch.Generator
) -> tuple[list[torch.Tensor], list[list[int]]]:
    """States and tokens of new pairs, by request."""
    states = [torch.randn(count, head.config.states_size, generator=draw) for count in counts]
    return states, [torch.randint(head.config.vocab_size, (count,), generator=draw).tolist() for count in counts]


def check_equal(trees: Sequence[DraftedTrees], caches: Sequence[Sequence[PairCache]]) -> None:
    """Assert that two runners drafted the same and cached the same."""
    found, expected = trees
    assert (found.tokens.tolist(), found.parents.tolist()) == (expected.tokens.tolist(), expected.parents.tolist())
    close(*(torch.from_numpy(each.log_probs) for each in trees))
    for one, other in zip(*caches, strict=True):
        assert len(one) == len(other)
        close(one.keys, other.keys)
        close(one.values, other.values)


def check_drafts(head: PairHead, runner: GraphRunner, batches: Sequence[Sequence[int]], num_earlier: int = 0) -> None:
    """Draft with a runner and with ``TorchRunner`` after the same pairs.

    Args:
        batches: the numbers of new pairs, by draft and request. All drafts have the same requests.
        num_earlier: of pairs in each cache before the first draft.
    """
    draw, runners = torch.Generator().manual_seed(7), (runner, TorchRunner(head, 4))
    caches = [[PairCache(head) for _ in batches[0]] for _ in runners]
    for of_request in zip(*caches, strict=True):
        states, tokens = drawn_pairs(head, [num_earlier], draw)
        for cache in of_request:
            append(head, cache, states[0], torch.tensor(tokens[0], dtype=torch.long))
    for i, counts in enumerate(batches):
        states, tokens = drawn_pairs(head, counts, draw)
        trees = [
            grow(each, own, states, tokens, *WIDTH_DEPTH_NODES[i % 3])
            for each, own in zip(runners, caches, strict=True)
        ]
        check_equal(trees, caches)


BATCHES = {
    "alone": [[count] for count in (1, 2, 3, 5, 8, 4)],
    "two": [[1, 3], [8, 2], [4, 4]],
    "three": [[1, 8, 2], [3, 1, 1], [1, 1, 1]],
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    "head",
    [random_head(4)[0], random_eagle_head(2), *(random_head(4, **each)[0] for each in VARIANTS.values())],
    ids=["eagle3", "eagle", *VARIANTS],
)
@torch.no_grad()
def test_drafts_are_those_that_the_host_grows(head: PairHead, batches: list[list[int]]) -> None:
    check_drafts(head, StaleRunner(head, 4), batches)


@pytest.mark.parametrize("num_earlier", [240, 885])
@torch.no_grad()
def test_replays_of_growing_texts_are_those_that_the_host_grows(graphs: type[PretendGraph], num_earlier: int) -> None:
    """After 256 slots more are read; before 1,024 the memory moves, so graphs of the old one must not be replayed."""
    head = random_head(2)[0]
    runner = GraphRunner(head, 4)
    runner._graphs.captures = True
    check_drafts(head, runner, [[4, 3]] * 9, num_earlier)
    assert graphs.num_replays > 2


@torch.no_grad()
def test_noise_is_an_input(graphs: type[PretendGraph]) -> None:
    head, draw = random_head(2)[0], torch.Generator().manual_seed(3)
    plain, runner = TorchRunner(head, 4), GraphRunner(head, 4)
    runner._graphs.captures = True
    caches: list[list[PairCache]] = [[PairCache(head) for _ in range(3)] for _ in range(2)]
    for _ in range(3):
        states, tokens = drawn_pairs(head, [1, 2, 2], draw)
        scale = torch.rand(3, 1, 1, generator=draw) + 0.5
        noises = [Noise(scale, torch.randn(3, 1, 24, generator=draw)) for _ in range(3)]
        trees = []
        for each, own in zip((runner, plain), caches, strict=True):
            growth = begin(each, own, states, tokens, noises.__getitem__, size=DraftSize(2, 3, 3))
            growth.feed()
            growth.feed()
            trees.append(growth.best(6))
        check_equal(trees, caches)
    assert graphs.num_replays == 2


@torch.no_grad()
def test_levels_that_are_not_fed_are_left_out() -> None:
    """As where the head's paths become too improbable, or the text ends."""
    head, draw = random_head(2)[0], torch.Generator().manual_seed(3)
    states, tokens = drawn_pairs(head, [3, 5], draw)
    caches = [[PairCache(head) for _ in range(2)] for _ in range(2)]
    growths = [
        begin(each, own, states, tokens, size=DraftSize(2, 4, 5))
        for each, own in zip((GraphRunner(head, 4), TorchRunner(head, 4)), caches, strict=True)
    ]
    for _ in range(3):
        check_equal([growth.best(9) for growth in growths], caches)
        close(*(torch.from_numpy(growth.next_log_probs) for growth in growths))
        for growth in growths:
            growth.feed()


@torch.no_grad()
def test_memory_holds_drafts_of_any_size() -> None:
    head, draw = random_head(2)[0], torch.Generator().manual_seed(3)
    states, tokens = drawn_pairs(head, [127], draw)
    caches = [[PairCache(head)] for _ in range(2)]
    runners = GraphRunner(head, 8), TorchRunner(head, 8)
    trees = [grow(each, own, states, tokens, 8, 18, 40) for each, own in zip(runners, caches, strict=True)]
    check_equal(trees, caches)


@torch.no_grad()
def test_one_requests_nan_reaches_no_other(graphs: type[PretendGraph]) -> None:
    head = random_head(2)[0]
    runner = GraphRunner(head, 4)
    runner._graphs.captures = True
    for _ in range(3):
        states, tokens = drawn_pairs(head, [8, 5], torch.Generator().manual_seed(3))
        found = grow(runner, [PairCache(head)] * 2, [states[0] * torch.nan, states[1]], tokens, 3, 3, 12)
        assert not torch.from_numpy(found.log_probs[0]).isfinite().any()
        alone = grow(TorchRunner(head, 4), [PairCache(head)], states[1:], tokens[1:], 3, 3, 12)
        assert found.tokens[1].tolist() == alone.tokens[0].tolist()
        check_drafts(head, runner, [[2, 1]] * 3)


@torch.no_grad()
def test_graphs_are_dropped_when_weights_move(graphs: type[PretendGraph]) -> None:
    head = random_head(2)[0]
    runner = GraphRunner(head, 4)
    runner._graphs.captures = True
    check_drafts(head, runner, [[1]] * 6)
    assert runner._graphs._graphs
    head.lm_head.weight.data = 2 * head.lm_head.weight.data
    runner._make_room(1, 9)
    assert not runner._graphs._graphs


@torch.no_grad()
def test_a_draft_waits_once_and_is_computed_by_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture allows neither copies from the host nor waits for it."""
    head = random_head(2)[0]
    states, tokens = drawn_pairs(head, [1, 3], torch.Generator().manual_seed(3))
    expected = grow(TorchRunner(head, 4), [PairCache(head) for _ in range(2)], states, tokens, 3, 3, 12)
    with pretend_device() as device:
        head, inside = head.to(NAME), []
        runner = GraphRunner(head, 4)
        compute = runner._draft

        def counting(inputs: Any, shape: Any) -> Any:
            before = device.waits, device.uploads
            outputs = compute(inputs, shape)
            inside.append((device.waits - before[0], device.uploads - before[1]))
            return outputs

        monkeypatch.setattr(runner, "_draft", counting)
        caches, states = [PairCache(head) for _ in range(2)], [each.to(NAME) for each in states]
        found = grow(runner, caches, states, tokens, 3, 3, 12)
        before = device.waits, device.uploads
        grow(runner, caches, states, tokens, 3, 3, 12)
        assert (device.waits - before[0], device.uploads - before[1]) == (1, 1)
    assert inside[1:] == [(0, 0)]  # the first pass brings the rotation's frequencies
    check_equal([found, expected], [[], []])


def test_texts_are_plain_decodings(
    built_in: tuple[Any, Any], graphs: type[PretendGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Captured(HeadRunners):
        def runner(self, head: PairHead, num_tokens: int | None, may_quantize: bool) -> GraphRunner:
            assert num_tokens is not None
            runner = GraphRunner(head, num_tokens)
            runner._graphs.captures = True
            return runner

    monkeypatch.setattr(HFBackend, "extension", lambda _, contract: Captured() if contract is HeadRunners else None)
    model, tokenizer = built_in
    texts, head = [], proposer_of("eagle3", model.config.vocab_size)
    with Generator(model, tokenizer, proposer=head, numerics="fast") as generator:
        for proposer in (head, "autoregressive"):
            for temperature in (0.0, 1.0):
                settings: dict[str, Any] = {"max_new_tokens": 9, "temperature": temperature, "seed": 5}
                results = generator.generate(["def f(", "class Counter"], proposer=proposer, **settings)
                texts.append([result.token_ids for result in results])
    assert texts[:2] == texts[2:]
    assert graphs.num_replays > 4


@pytest.mark.parametrize(
    ("device", "num_tokens", "chosen"),
    [
        ("cuda", 4, "GraphRunner"),
        ("cuda:1", 4, "GraphRunner"),
        ("cuda", None, "TorchRunner"),
        ("cpu", 4, "TorchRunner"),
    ],
)
def test_graphs_are_for_chosen_candidates_on_cuda(
    monkeypatch: pytest.MonkeyPatch, device: str, num_tokens: int | None, chosen: str
) -> None:
    for name in ("GraphRunner", "TorchRunner"):
        monkeypatch.setattr(graph_runner, name, lambda *_, name=name: name)
    head: Any = SimpleNamespace(fc=SimpleNamespace(weight=SimpleNamespace(device=torch.device(device))))
    assert runner_by_torch(head, num_tokens) == chosen  # type: ignore[comparison-overlap]  # names of classes here
