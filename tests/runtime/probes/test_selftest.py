"""The self-test takes every right model and finds every planted mistake; ``benchmarks selftest`` tries many more."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specdec import ModelError
from specdec.backends import supported_passes
from specdec.backends.hf import HFBackend
from specdec.masks.dense import DenseCompiler
from specdec.masks.exact.compiler import ExactCompiler
from specdec.runtime.probes.selftest import probe
from specdec.target import Target
from tests.support import families, planted
from tests.support.examined import examined

FAMILIES = ("llama", "gemma2", "gpt2", "mixtral")
SIZES = [(2, torch.float32), (2, torch.bfloat16), (16, torch.bfloat16)]
COMPILERS = (DenseCompiler(), ExactCompiler())

# Each model meets one compiler, each family and each size both.
RIGHT = [
    pytest.param((name, *size), compiler, id=f"{name}-{size}-{compiler!r}")
    for row, name in enumerate(FAMILIES)
    for size, compiler in zip(SIZES, COMPILERS[row % 2 :] + COMPILERS[: 1 + row % 2], strict=True)
]
# Each mistake meets each family and each size.
MISTAKES = [
    pytest.param((name, *size), mistake, id=f"{name}-{size}-{mistake}")
    for row, name in enumerate(FAMILIES)
    for mistake, size in zip(planted.BACKENDS, (SIZES[row:] + 3 * SIZES)[: len(planted.BACKENDS)], strict=True)
]


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    name, layers, dtype = request.param
    return families.deep(name, layers, has_spikes=True).to(dtype)


@pytest.mark.parametrize(("model", "compiler"), RIGHT, indirect=["model"])
def test_a_right_model_with_large_activations_is_taken_with_trees(model: PreTrainedModel, compiler: Any) -> None:
    backend = examined(HFBackend.load(model, compiler))
    assert backend.shapes.takes_trees, backend.examination.reason


@pytest.mark.parametrize(("model", "mistake"), MISTAKES, indirect=["model"])
def test_a_mistake_in_the_slots_of_the_cache_is_found(model: PreTrainedModel, mistake: str) -> None:
    backend = planted.BACKENDS[mistake](model, DenseCompiler())
    fault = probe(Target(backend, DenseCompiler()), model).fault
    assert "is off from plain forward passes by" in fault


def test_mistakes_of_deep_mixtures_in_half_precision_are_found_and_the_model_keeps_its_layers() -> None:
    model, compiler = families.deep("deepseek_v3", 12, has_spikes=True).to(torch.bfloat16), DenseCompiler()
    assert examined(HFBackend.load(model, compiler)).shapes.takes_trees
    backend = planted.KeepsAnotherBranch(model, compiler)
    assert probe(Target(backend, compiler), model).fault
    layers = dict(model.named_modules())
    assert sum(name.count(".") == 2 and "layers" in name for name in layers) == 12, "the model has all layers again"


@pytest.mark.parametrize("mistake", [*planted.LAYOUTS, *planted.REGIONS])
def test_a_mistake_in_a_layout_is_refused_with_the_compilers_name(mistake: str) -> None:
    model, compiler = families.deep("gpt_oss", 2, has_spikes=True), ExactCompiler()
    spoiled = planted.spoiled(compiler, mistake)
    tried = probe(Target(planted.Untested(model, spoiled), spoiled), model)
    assert tried.fault.startswith("Spoiled compiled a wrong layout: node")


def test_a_model_that_is_not_causal_is_refused() -> None:
    with pytest.raises(ModelError, match="specdec needs a causal model"):
        examined(HFBackend.load(families.make("BertConfig", {**families.MHA}), DenseCompiler()))


@pytest.mark.parametrize(("layers", "dtype"), [(2, torch.float32), (2, torch.bfloat16), (16, torch.float32)])
def test_a_bias_by_slots_refuses_trees_and_takes_chains(
    layers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supported_passes, "_CHAINS_ONLY", {})
    backend = examined(HFBackend.load(families.deep("mpt", layers).to(dtype), DenseCompiler()))
    assert not backend.shapes.takes_trees
    assert "of the logits' spread; allowed" in backend.examination.reason


def test_logits_that_are_no_numbers_are_refused() -> None:
    model: Any = families.make(*families.TREES["llama"])
    model.lm_head.register_forward_hook(lambda *called: called[2].masked_fill(called[2] > 3.0, torch.nan))
    with pytest.raises(ModelError, match="is off from plain forward passes by nan"):
        examined(HFBackend.load(model, DenseCompiler()))


def test_the_same_rounding_is_tried_each_time_and_the_model_is_left_as_it_was() -> None:
    model, compiler = families.deep("mixtral", 4).to(torch.bfloat16), DenseCompiler()
    before = dict(model.named_modules())
    first, second = (probe(Target(planted.Untested(model, compiler), compiler), model) for _ in range(2))
    assert first == second
    assert dict(model.named_modules()) == before
    assert not model.get_input_embeddings()._forward_hooks
    assert torch.equal(families.plain_logits(model, [1, 2]), families.plain_logits(model, [1, 2]))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 12")])
def test_a_lack_of_memory_is_no_finding_about_the_model(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    model = families.make(*families.TREES["llama"])

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(HFBackend, "forward", fail)
        with pytest.raises(ModelError, match=r"can't be tested: memory ran out \(.*\): free memory"):
            examined(HFBackend.load(model, DenseCompiler()))
    assert not examined(HFBackend.load(model, DenseCompiler())).examination.reason
