"""Passes of fixed shapes: the results of ``TorchRunner`` in any batch, replayed, and never from memory that moved."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specdec import Generator
from specdec.backends.hf import HFBackend
from specdec.heads import graph_runner
from specdec.heads.base import Continuations, HeadRunners, KeyValues, Noise, Pairs
from specdec.heads.drafting import DraftedTrees, TreeGrowth, first_returned, grow
from specdec.heads.graph_runner import GraphRunner, runner_by_torch
from specdec.heads.pair_cache import PairCache, append
from specdec.heads.pair_head import PairHead
from specdec.heads.torch_runner import TorchRunner
from specdec.machine import cuda_graphs
from tests.support.generators import proposer_of
from tests.support.pretend_device import NAME, pretend_device
from tests.support.random_heads import random_eagle_head, random_head

WIDTH_DEPTH_NODES = (3, 3, 12), (1, 4, 4), (4, 2, 9)


class ComparedRunner(GraphRunner):
    """Compares each pass with ``TorchRunner``'s on a copy of the keys and values, whose other slots are arbitrary."""

    def __init__(self, head: PairHead, num_tokens: int) -> None:
        super().__init__(head, num_tokens)
        self._plain, self.num_passes = TorchRunner(head, num_tokens), 0

    def buffers(self, requests: int, num_slots: int) -> KeyValues:
        found = super().buffers(requests, num_slots)
        for each in self._memory:
            each.fill_(10.0)
        return found

    def run(self, pairs: Pairs, cache: KeyValues, noise: Noise | None = None) -> Continuations:
        copy = KeyValues(*(each.clone() for each in cache))
        expected, found = self._plain.run(pairs, copy, noise), super().run(pairs, cache, noise)
        assert found.tokens.tolist() == expected.tokens.tolist()
        close(torch.from_numpy(found.log_probs), torch.from_numpy(expected.log_probs))
        close(found.features, expected.features)
        for row, start in enumerate(pairs.starts.tolist()):
            for written, others in zip(cache, copy, strict=True):
                close(*(each[row, :, : start + pairs.tokens.shape[1]] for each in (written, others)))
        self.num_passes += 1
        return found


class PretendGraph:
    """Replays a pass as a CUDA graph does: with the inputs' own tensors, and the memory of when it was captured."""

    num_replays = 0

    def __init__(self, run: Callable[[Any], Any], inputs: Any, pool: Any) -> None:
        self._run, self._inputs = run, inputs.owned()
        self._runner: Any = run.__self__  # type: ignore[attr-defined]  # a method
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
@pytest.mark.parametrize("head", [random_head(4)[0], random_eagle_head(2)], ids=["eagle3", "eagle"])
@torch.no_grad()
def test_passes_are_torch_runners(head: PairHead, batches: list[list[int]]) -> None:
    runner = ComparedRunner(head, 4)
    check_drafts(head, runner, batches)
    assert runner.num_passes == 12 * len(batches) // 3  # those of WIDTH_DEPTH_NODES: 4, 5 and 3


@pytest.mark.parametrize("num_earlier", [240, 885])
@torch.no_grad()
def test_replays_of_growing_texts_are_torch_runners(graphs: type[PretendGraph], num_earlier: int) -> None:
    """After 256 slots more are read; before 1,024 the memory moves, so graphs of the old one must not be replayed."""
    head = random_head(2)[0]
    runner = GraphRunner(head, 4)
    runner._graphs.captures = True
    check_drafts(head, runner, [[4, 3]] * 4, num_earlier)
    assert graphs.num_replays > 4


@torch.no_grad()
def test_noise_is_an_input(graphs: type[PretendGraph]) -> None:
    head, draw = random_head(2)[0], torch.Generator().manual_seed(3)
    plain, runner = TorchRunner(head, 4), GraphRunner(head, 4)
    runner._graphs.captures = True
    caches: list[list[PairCache]] = [[PairCache(head) for _ in range(3)] for _ in range(2)]
    for _ in range(3):
        states, tokens = drawn_pairs(head, [1, 2, 2], draw)
        noises = [Noise(torch.rand(3, 1, 1) + 0.5, torch.randn(3, 1, 24, generator=draw)) for _ in range(3)]
        trees = []
        for each, own in zip((runner, plain), caches, strict=True):
            growth = TreeGrowth(each, own, states, tokens, 2, noises.__getitem__, first_returned(2))
            growth.feed()
            growth.feed()
            trees.append(growth.best(6))
        check_equal(trees, caches)
    assert graphs.num_replays == 7


@torch.no_grad()
def test_a_draft_that_outgrows_the_memory_goes_on_in_other_memory() -> None:
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
    for _ in range(2):
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
    runner.buffers(1, 9)
    assert not runner._graphs._graphs


@torch.no_grad()
def test_a_pass_waits_once_and_is_computed_by_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture allows neither copies from the host nor waits for it."""
    head = random_head(2)[0]
    states, tokens = drawn_pairs(head, [1, 3], torch.Generator().manual_seed(3))
    expected = grow(TorchRunner(head, 4), [PairCache(head) for _ in range(2)], states, tokens, 3, 3, 12)
    with pretend_device() as device:
        head, inside = head.to(NAME), []
        runner = GraphRunner(head, 4)
        compute = runner._pass

        def counting(inputs: Any) -> Any:
            before = device.waits, device.uploads
            outputs = compute(inputs)
            inside.append((device.waits - before[0], device.uploads - before[1]))
            return outputs

        monkeypatch.setattr(runner, "_pass", counting)
        caches, states = [PairCache(head) for _ in range(2)], [each.to(NAME) for each in states]
        grow(runner, caches, states, tokens, 3, 1, 12)
        before = device.waits, device.uploads
        found = grow(runner, caches, states, tokens, 3, 3, 12)
        assert (device.waits - before[0], device.uploads - before[1]) == (4, 4 + 3)  # levels choose features by index
    assert inside[1:] == [(0, 0)] * 5  # the first pass brings the rotation's frequencies
    assert expected.tokens.shape == found.tokens.shape


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
