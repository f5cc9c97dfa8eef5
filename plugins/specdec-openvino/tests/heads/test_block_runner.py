"""A block drafter's graph drafts what the reference drafts, and texts stay plain decoding's."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.heads.runner import OpenVINOBlockRunner
from specdec_openvino.options import OpenVINOOptions

from specdec import Generator
from specdec.heads import BlockRunner, HeadRunners, Noise
from specdec.heads.block_folder import read_block_head
from specdec.heads.drafting import DraftedTrees, DraftSize, begin
from specdec.heads.files import TargetWeights
from specdec.heads.pair_cache import PairCache, append
from specdec.masks import DenseCompiler

SUPPORT = Path(__file__).parents[4] / "tests" / "support"
LENGTHS, NEWS, ANCHORS = [300, 7, 2], [2, 6, 2], [5, 40, 8]  # of the last, the text begins with the pass
TOLERANCE = 4e-4
NAMES = (
    "z-lab", "z-lab, block size and layers by default", "z-lab, sliding", "z-lab, sliding both ways",
    "z-lab, a window of all layers", "z-lab, causal", "z-lab, scaled", "DeepSpec, DFlash", "DeepSpec, vanilla",
    "DeepSpec, gated", "DeepSpec, rnn", "DeepSpec, embeddings as a state", "speculators, dflash",
    "speculators, dflash from its anchor", "speculators, dflash, sliding", "speculators, dflash, sliding both ways",
    "speculators, dspark", "speculators, dspark behind its anchor",
)  # fmt: skip


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Specdec's own folders of random drafters, and the reference."""
    for name, folder in (("tests", SUPPORT.parent), ("tests.support", SUPPORT)):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        monkeypatch.setitem(sys.modules, name, package)
    modules = [importlib.import_module(f"tests.support.{name}") for name in ("block_reference", "block_folders")]
    found = {name: value for module in modules for name, value in vars(module).items()}
    assert set(found["LAYOUTS"]) == {*NAMES}
    return SimpleNamespace(**found)


def drafter(own: Any, folder: Path, name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A head, and the reference."""
    layout, draw = own.LAYOUTS[name], torch.Generator().manual_seed(9)
    output, embeddings = (torch.randn(own.VOCAB, own.WIDTH, generator=draw) for _ in range(2))
    reference = own.BlockReference(layout, own.write(folder, layout), embeddings, output)
    weights = TargetWeights(embeddings.to(dtype), lambda: output.to(dtype), 4)
    return read_block_head(folder, weights, dtype).requires_grad_(False), reference


def texts(own: Any, layout: Any) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(4)
    return [torch.randn(length, len(layout.layer_ids) * own.WIDTH, generator=draw) for length in LENGTHS]


def grown(runner: BlockRunner, states: list[torch.Tensor], noise: Any = lambda _: None) -> DraftedTrees:
    """Trees of all requests in one pass, after texts of which a part was cached."""
    caches, tokens = [PairCache(runner.head, runner.num_slots) for _ in states], list[list[int]]()
    for cache, text, new, anchor in zip(caches, states, NEWS, ANCHORS, strict=False):
        if earlier := len(text) - new:
            append(runner.head, cache, text[:earlier], torch.zeros(earlier, dtype=torch.long))
        tokens.append([3] * (new - 1) + [anchor])
    given = [text[-new:] for text, new in zip(states, NEWS, strict=False)]
    growth = begin(runner, caches, given, tokens, noise, size=DraftSize(2, 2, runner.num_drafted))
    for _ in range(runner.num_drafted - 1):
        growth.feed()
    assert [len(cache) for cache in caches] == [len(text) for text in states]
    for cache, text in zip(caches, states, strict=True):  # the pass's keys are those that torch appends
        again = PairCache(runner.head)
        append(runner.head, again, text.to(cache.keys.dtype), torch.zeros(len(text), dtype=torch.long))
        torch.testing.assert_close(cache.keys, again.keys, atol=0.02 if cache.keys.itemsize == 2 else 1e-4, rtol=0.02)
    return growth.best(1000)


@pytest.mark.parametrize("num_tokens", [64, None])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_log_probabilities_of_a_ragged_batch_are_those_of_the_reference_and_torch(
    own: Any, tmp_path: Path, name: str, num_tokens: int | None
) -> None:
    head, reference = drafter(own, tmp_path, name)
    states = texts(own, own.LAYOUTS[name])
    runner = OpenVINOBlockRunner(head, num_tokens, OpenVINOOptions())
    found, by_torch = grown(runner, states), grown(BlockRunner(head, num_tokens), states)
    assert found.tokens.tolist() == by_torch.tokens.tolist()
    np.testing.assert_allclose(found.log_probs, by_torch.log_probs, atol=TOLERANCE)
    for row, (text, anchor) in enumerate(zip(states, ANCHORS, strict=True)):
        of_path: dict[tuple[int, ...], Any] = {}
        paths: list[tuple[int, ...]] = []
        sums = list[float]()
        for node in range(found.tokens.shape[1]):
            parent, token = int(found.parents[row, node]), int(found.tokens[row, node])
            above = paths[parent] if parent >= 0 else ()
            if above not in of_path:
                of_path[above] = reference.log_probs(text, anchor, above, num_kept=num_tokens)
            paths.append((*above, token))
            place = list(reference.draft_ids).index(token)
            sums.append(of_path[above][place].item() + (sums[parent] if parent >= 0 else 0.0))
        np.testing.assert_allclose(found.log_probs[row], sums, atol=TOLERANCE)
        first = (
            reference.log_probs(text, anchor, num_kept=num_tokens).topk(2).indices.tolist() if num_tokens else [0, 1]
        )
        assert found.tokens[row][:2].tolist() == reference.draft_ids[first].tolist()


@torch.no_grad()
@pytest.mark.parametrize("name", ["z-lab", "DeepSpec, rnn"])
def test_noise_is_in_the_graph_as_in_torchs_pass(own: Any, tmp_path: Path, name: str) -> None:
    head, _ = drafter(own, tmp_path, name)
    states, draw = texts(own, own.LAYOUTS[name]), torch.Generator().manual_seed(3)
    scale = torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    noises = [Noise(scale, torch.randn(3, 1, own.VOCAB, generator=draw)) for _ in range(4)]
    runners = OpenVINOBlockRunner(head, 4, OpenVINOOptions()), BlockRunner(head, 4)
    found, expected = (grown(runner, states, noises.__getitem__) for runner in runners)
    assert found.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=TOLERANCE)
    assert found.tokens.tolist() != grown(runners[0], states).tokens.tolist()


@torch.no_grad()
@pytest.mark.parametrize(("is_quantized", "name"), [(False, "DeepSpec, gated"), (True, "DeepSpec, gated")])
def test_log_probabilities_of_a_head_in_bfloat16_are_within_rounding(
    own: Any, tmp_path: Path, bfloat16: torch.dtype, is_quantized: bool, name: str
) -> None:
    """And matrices of 8 bits are those of the head, rounded beforehand."""
    head, reference = drafter(own, tmp_path, name, bfloat16)
    runner = OpenVINOBlockRunner(head, None, OpenVINOOptions(), is_quantized)
    nodes = runner._graph.model.get_runtime_model().get_ordered_ops()
    in_8_bits = sum(value.get_element_type() == ov.Type.i8 for node in nodes for value in node.inputs())
    assert in_8_bits == (10 if is_quantized else 0)
    state = texts(own, own.LAYOUTS[name])[1]
    cache = PairCache(runner.head, runner.num_slots)
    growth = begin(runner, [cache], [state.to(bfloat16)], [[3] * 6 + [9]], size=DraftSize(own.VOCAB, own.VOCAB, 1))
    found, expected = growth.best(own.VOCAB), reference.log_probs(state, 9)
    assert found.tokens[0].tolist() == [*range(own.VOCAB)]
    np.testing.assert_allclose(found.log_probs[0], expected, atol=0.3)


@torch.no_grad()
def test_a_drafter_of_nan_gives_tokens_of_the_vocabulary(own: Any, tmp_path: Path) -> None:
    head, _ = drafter(own, tmp_path, "DeepSpec, vanilla")
    head.norm.weight.fill_(float("nan"))
    runner = OpenVINOBlockRunner(head, 4, OpenVINOOptions())
    growth = begin(runner, [PairCache(head)], [torch.ones(1, head.fc.in_features)], [[9]], size=DraftSize(2, 2, 2))
    growth.feed()
    assert set(growth.best(9).tokens.flatten().tolist()) <= {*range(own.VOCAB)}


@torch.no_grad()
def test_a_drafter_that_openvino_does_not_run_is_run_by_torch(own: Any, tmp_path: Path, make: Any) -> None:
    backend = OpenVINOBackend.load(make("llama"), DenseCompiler())
    head, _ = drafter(own, tmp_path, "DeepSpec, vanilla")
    kinds = list[type]()
    for is_trainable in (False, True):  # weights with gradients are no constants
        head.requires_grad_(is_trainable)
        kinds.append(type(backend.extension(HeadRunners).runner(head, 4, False)))
    assert kinds == [OpenVINOBlockRunner, BlockRunner]
    backend.close()


@pytest.mark.parametrize("name", ["z-lab, sliding", "DeepSpec, gated"])
def test_texts_in_exact_numerics_are_plain_decodings(
    own: Any, tmp_path: Path, families: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "num_hidden_layers": 4, "max_position_embeddings": 512})
    own.write(tmp_path, own.LAYOUTS[name])
    strategy = f"{'dspark' if own.LAYOUTS[name].markov else 'dflash'}:head={tmp_path},min_probability=0"
    prompts, seen, accepted = (
        [[5, 17, 40, 8, 33], [7 + index % 60 for index in range(280)], [9]],
        list[int](),
        list[int](),
    )
    run = OpenVINOBlockRunner.run

    def counted(*given: Any) -> Any:
        seen.append(1)
        return run(*given)

    monkeypatch.setattr(OpenVINOBlockRunner, "run", counted)
    with Generator(model, proposer=strategy, backend="openvino", numerics="exact") as generator:
        for temperature in (0.0, 1.0):
            settings: Any = {"max_new_tokens": 12, "temperature": temperature, "seed": 5}
            drafted, plain = (
                generator.generate(prompts, **settings, proposer=proposer) for proposer in (strategy, "autoregressive")
            )
            assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
            accepted += [length for each in drafted for length in each.stats.accepted_lengths]
    assert max(accepted) > 1
    assert len(seen) > 8
