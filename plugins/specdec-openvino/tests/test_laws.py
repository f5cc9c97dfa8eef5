"""Every family that converts keeps the backend's laws: trees or chains, ragged batches, and the same bits in exact."""

import weakref
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from specdec_openvino import blocks
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.options import OpenVINOOptions
from transformers import PreTrainedModel

from specdec import DraftTree
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.probes.walk import walk
from specdec.target import Target
from specdec.testing import check_backend

Make = Callable[[str], PreTrainedModel]
LAYERS = [0, 1, 2, -1]
WINDOWED = {"mistral-window", "qwen2-window", "gemma3", "gpt_oss", "cohere2"}


def test_a_family_keeps_the_laws(
    make: Make, families: ModuleType, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_LEAST", 1)  # so that buffers grow
    model = make(family)
    backend = OpenVINOBackend.load(model, DenseCompiler(), OpenVINOOptions())

    def plain(tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = families.plain_logits(model, tokens)[-1]
        return logits

    check_backend(backend, plain, tolerance=1e-4)
    assert backend.shapes.takes_trees == (family not in WINDOWED)


def test_a_chain_has_the_bits_of_plain_steps_in_exact_numerics(make: Make, family: str) -> None:
    backend = OpenVINOBackend.load(make(family), ExactCompiler(), OpenVINOOptions())
    assert not backend.shapes.takes_trees
    deviation = walk(Target(backend, ExactCompiler())).deviation()
    assert not deviation.where
    assert not backend.inexact


@pytest.mark.parametrize("compiler", [DenseCompiler(), ExactCompiler()])
@pytest.mark.parametrize("name", ["llama", "nemotron_h"])
def test_hidden_states_are_transformers(make: Make, name: str, compiler: Any) -> None:
    model = make(name)
    target = Target(OpenVINOBackend.load(model, compiler, OpenVINOOptions()), compiler)
    tokens = [[5, 9, 2], [7, 1, 8, 3, 30]]
    with torch.no_grad():
        expected = [model(torch.tensor([row]), output_hidden_states=True).hidden_states for row in tokens]
    trees = {}
    for row in tokens:
        tree = DraftTree(row[0])
        tree.add_chain(0, row[1:])
        trees[target.open(8)] = tree
    answers = target.forward(target.compile(trees, hidden=LAYERS)).rows
    for row, own in zip(trees, expected, strict=True):
        for node in range(len(trees[row])):
            states = answers[row].hidden(node, LAYERS)
            wanted = torch.stack([own[layer][0, node] for layer in LAYERS])
            torch.testing.assert_close(states, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gpt_neox"])
def test_a_model_of_16_bits_is_fused_as_one_of_32_is(families: ModuleType, name: str) -> None:
    numbers = list[Counter[str]]()
    for dtype in (torch.float32, torch.bfloat16):
        model = families.make(*families.TREES[name]).to(dtype)
        backend = OpenVINOBackend.load(model, ExactCompiler(), OpenVINOOptions())
        assert not walk(Target(backend, ExactCompiler())).deviation().where
        operations = backend._passes._compiled.model.get_runtime_model().get_ops()
        numbers.append(Counter(node.get_rt_info()["layerType"].astype(str) for node in operations))
    assert numbers[0]["PagedAttention"] == 2
    for kind in ("RoPE", "RMS", "MVN", "FullyConnected", "PagedAttention"):
        assert numbers[1][kind] == numbers[0][kind], kind


def test_in_exact_numerics_logits_have_the_same_bits_beside_hidden_states(families: ModuleType) -> None:
    model, compiler = families.make(*families.TREES["llama"]).bfloat16(), ExactCompiler()
    target = Target(OpenVINOBackend.load(model, compiler, OpenVINOOptions()), compiler)
    tree = DraftTree(5)
    tree.add_chain(0, [9, 2, 30, 31])
    rows = [target.open(8) for _ in range(2)]
    with_hidden, without = (
        target.forward(target.compile({row: tree}, hidden=hidden)).rows[row]
        for row, hidden in zip(rows, ([1], []), strict=True)
    )
    for node in range(len(tree)):
        assert torch.equal(with_hidden.logits(node), without.logits(node))


def test_memory_goes_with_the_last_row(make: Make) -> None:
    compiler = DenseCompiler()
    backend = OpenVINOBackend.load(make("llama"), compiler, OpenVINOOptions())
    target = Target(backend, compiler)
    row = target.open(8)
    backend._blocks.reserve(0, 100 * backend._blocks.size)
    target.forward(target.compile({row: DraftTree(5)}))
    held = [weakref.ref(cache.untyped_storage()) for cache in backend._blocks.caches()]
    assert backend.cache_bytes(()) > 0
    target.release(row)
    assert backend.cache_bytes(()) == 0
    assert not any(each() for each in held)
