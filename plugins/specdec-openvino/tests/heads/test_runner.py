"""A trained head's graph drafts what the reference drafts, and a head that OpenVINO can't run is run by torch."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import openvino as ov
import pytest
import torch
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.heads.graph import HeadError
from specdec_openvino.heads.runner import OpenVINORunner
from specdec_openvino.options import OpenVINOOptions

from specdec.heads import HeadRunner, HeadRunners, LogitsMap, TorchRunner
from specdec.heads.drafting import DraftedTrees, grow
from specdec.heads.pair_cache import PairCache, append, prefill
from specdec.heads.strategies.engine import HeadEngine, TreeOptions
from specdec.masks import DenseCompiler

BATCH, STEPS, NUM_MATRICES = 3, 4, 6


SUPPORT = Path(__file__).parents[4] / "tests" / "support"


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of specdec's own tests with random heads and the reference."""
    for name in ("eagle3_reference", "random_heads"):
        found = importlib.util.spec_from_file_location(f"tests.support.{name}", SUPPORT / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        loaded = importlib.util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, found.name, loaded)
        found.loader.exec_module(loaded)
    return loaded


def frozen(heads: ModuleType, seed: int, is_eagle3: bool = True, variant: str = "") -> Any:
    fields = heads.VARIANTS.get(variant, {})
    head = heads.random_head(seed, **fields)[0] if is_eagle3 else heads.random_eagle_head(seed)
    return head.requires_grad_(False)


class Texts:
    """Random pairs for requests of ragged lengths; a few are appended in each step."""

    def __init__(self, head: Any, seed: int) -> None:
        self._vocab, self._width = head.config.vocab_size, head.config.states_size
        self._draw = torch.Generator().manual_seed(seed)

    def next(self, most: int) -> tuple[list[torch.Tensor], list[list[int]]]:
        counts = torch.randint(1, most + 1, (BATCH,), generator=self._draw).tolist()
        states = [torch.randn(count, self._width, generator=self._draw) for count in counts]
        return states, [torch.randint(self._vocab, (count,), generator=self._draw).tolist() for count in counts]


@pytest.mark.parametrize(
    ("seed", "is_eagle3", "variant"),
    [
        *((seed, True, "") for seed in range(4)),
        (0, False, ""),
        (3, False, ""),
        *((2, True, variant) for variant in ("biases", "norms of queries and keys", "a window", "all")),
    ],
)
@torch.no_grad()
def test_trees_and_keys_of_a_ragged_batch_are_those_of_the_reference(
    heads: ModuleType, seed: int, is_eagle3: bool, variant: str
) -> None:
    """With full and reduced vocabularies, as trees and as paths, after drafts that were rejected."""
    head = frozen(heads, seed, is_eagle3, variant)
    runner, texts = OpenVINORunner(head, 4, OpenVINOOptions()), Texts(head, seed)
    references = [heads.reference_of(head) for _ in range(BATCH)]
    caches = [PairCache(head) for _ in range(BATCH)]
    for step in range(STEPS):
        states, tokens = texts.next(9 if step == 0 else 3)
        width, depth, total = ((3, 3, 12), (1, 3, 4))[step % 2]
        trees = grow(runner, caches, states, tokens, width, depth, total)
        for row, reference in enumerate(references):
            new = states[row], torch.tensor(tokens[row])
            heads.check_row(trees, row, caches[row], reference, *new, (width, depth, total), 1e-4)


@torch.no_grad()
def test_a_request_alone_drafts_the_same_after_more_slots_were_needed(heads: ModuleType) -> None:
    head = frozen(heads, 3)
    runner, texts, reference = OpenVINORunner(head, 3, OpenVINOOptions()), Texts(head, 3), heads.reference_of(head)
    cache, runner.num_reads = PairCache(head), 64  # a prompt of several passes
    for step in range(STEPS):
        states, tokens = texts.next(3)
        if step == 2:  # more than the slots that were reserved
            many = torch.randn(300, head.fc.in_features)
            prefill(runner, cache, many, [number % head.config.vocab_size for number in range(300)])
            reference.extend(many, torch.arange(300) % head.config.vocab_size)
        tree = grow(runner, [cache], states[:1], tokens[:1], 3, 2, 9)
        expected = reference.grow(reference.extend(states[0], torch.tensor(tokens[0])), 3, 2, 9)
        assert (tree.tokens[0].tolist(), tree.parents[0].tolist()) == expected[:2]


@pytest.mark.parametrize(
    ("dtype", "is_quantized", "rounding"),
    [("bfloat16", False, 0.15), ("bfloat16", True, 0.15), ("float32", True, 1e-4)],
)
@torch.no_grad()
def test_log_probabilities_are_within_rounding(
    heads: ModuleType, dtype: str, is_quantized: bool, rounding: float
) -> None:
    """Of bfloat16, and in 8 bits those of a head whose matrices were rounded beforehand."""
    head, kind = frozen(heads, 2), getattr(torch, dtype)
    narrow, texts = frozen(heads, 2).to(kind), Texts(head, 7)
    narrow.embeddings = narrow.embeddings.to(kind)
    runner = OpenVINORunner(narrow, head.config.draft_vocab_size, OpenVINOOptions(), is_quantized)
    if is_quantized:
        assert matrices_in_8_bits(runner) == NUM_MATRICES
        for matrix in [each for each in head.parameters() if each.ndim > 1]:
            step = matrix.abs().amax(1, keepdim=True) / 127
            matrix.copy_((matrix / step).round() * step)
    caches = [PairCache(narrow) for _ in range(BATCH)]
    states, tokens = texts.next(8)
    trees = grow(runner, caches, [each.to(kind) for each in states], tokens, runner.num_tokens, 0, 100)
    for row in range(BATCH):
        reference = heads.reference_of(head)
        ids, _, log_probs = reference.grow(
            reference.extend(states[row], torch.tensor(tokens[row])), runner.num_tokens, 0, runner.num_tokens
        )
        expected = dict(zip(ids, log_probs, strict=True))
        found = dict(zip(trees.tokens[row].tolist(), trees.log_probs[row].tolist(), strict=True))
        assert found.keys() == expected.keys()
        assert max(abs(found[token] - expected[token]) for token in found) < rounding


@torch.no_grad()
def test_a_targets_own_map_to_logits_is_in_the_graph(heads: ModuleType) -> None:
    """A scale, a soft cap and a bias."""
    head, draw = frozen(heads, 0, is_eagle3=False), torch.Generator().manual_seed(0)
    bias = torch.randn(len(head.lm_head.weight), generator=draw)
    plain = draft(OpenVINORunner(head, 4, OpenVINOOptions()), Texts(head, 1))
    head.logits_map = LogitsMap(0.5, 2.0, bias)
    found, expected = (
        draft(each, Texts(head, 1)) for each in (OpenVINORunner(head, 4, OpenVINOOptions()), TorchRunner(head, 4))
    )
    assert found.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(
        torch.from_numpy(found.log_probs), torch.from_numpy(expected.log_probs), rtol=1e-4, atol=1e-4
    )
    assert plain.tokens.tolist() != found.tokens.tolist()


def matrices_in_8_bits(runner: HeadRunner) -> int:
    assert isinstance(runner, OpenVINORunner)
    nodes = runner._graph.model.get_runtime_model().get_ordered_ops()
    return sum(value.get_element_type() == ov.Type.i8 for node in nodes for value in node.inputs())


@torch.no_grad()
def test_a_head_of_nan_gives_tokens_of_the_vocabulary(heads: ModuleType) -> None:
    head = frozen(heads, 2)
    head.norm.weight.fill_(float("nan"))
    texts = Texts(head, 1)
    trees = draft(OpenVINORunner(head, 4, OpenVINOOptions()), texts)
    assert set(trees.tokens.flatten().tolist()) <= set(head.target_ids.tolist())
    assert not torch.from_numpy(trees.log_probs).isfinite().any()


@torch.no_grad()
def test_a_request_with_nan_changes_no_draft_of_the_next(heads: ModuleType) -> None:
    """Its pass has more pairs, in rows that the next request's pass doesn't fill."""
    head = frozen(heads, 2)
    states, tokens = torch.full((4, head.fc.in_features), float("nan")), [1, 2, 3, 4]
    runners = [OpenVINORunner(head, 4, OpenVINOOptions()) for _ in range(2)]
    grow(runners[0], [PairCache(head)], [states], [tokens], 2, 0, 2)
    states = torch.ones(1, head.fc.in_features)
    after, alone = (grow(runner, [PairCache(head)], [states], [[5]], 2, 2, 6) for runner in runners)
    assert after.tokens.tolist() == alone.tokens.tolist()
    assert after.log_probs.tolist() == alone.log_probs.tolist()


@pytest.mark.parametrize("num_pairs", [1, 150, 180, 300])
@torch.no_grad()
def test_caches_have_sizes_whose_kernels_are_shared(heads: ModuleType, num_pairs: int) -> None:
    """However a request's pairs were cached, at once here."""
    head = frozen(heads, 2)
    engine = HeadEngine(TreeOptions(2, 2, 4, 0.0), OpenVINORunner(head, 4, OpenVINOOptions()), (1, 2, 3), "eagle3")
    append(
        head, cache := engine.new_cache(), torch.zeros(num_pairs, head.fc.in_features), torch.zeros(num_pairs).long()
    )
    assert len(cache) == num_pairs
    assert cache.reserve(0).keys.shape[2] in {256, 384, 512, 768}


def draft(runner: Any, texts: Texts) -> DraftedTrees:
    return grow(runner, [PairCache(runner.head) for _ in range(BATCH)], *texts.next(3), 2, 2, 6)


@torch.no_grad()
def test_a_head_that_openvino_does_not_run_is_run_by_torch(
    heads: ModuleType, make: Any, in_fork: Callable[[Callable[[], object]], None]
) -> None:
    backend = OpenVINOBackend.load(make("llama"), DenseCompiler())
    head, _ = heads.random_head(2)  # its weights have gradients, so no graph has them as constants
    with pytest.raises(HeadError):
        OpenVINORunner(head, 4, OpenVINOOptions())
    cases = (head, False), (frozen(heads, 2), False), (frozen(heads, 2), True)
    *runners, quantized = [backend.extension(HeadRunners).runner(each, 4, may_quantize) for each, may_quantize in cases]
    assert [type(runner) for runner in runners] == [TorchRunner, OpenVINORunner]
    assert [matrices_in_8_bits(runner) for runner in (runners[1], quantized)] == [0, NUM_MATRICES]
    drafts = [draft(runner, Texts(head, 1)).tokens.tolist() for runner in runners]
    assert drafts[0] == drafts[1]
    in_fork(runners.clear)  # where the head's graph can't be freed
    backend.close()
