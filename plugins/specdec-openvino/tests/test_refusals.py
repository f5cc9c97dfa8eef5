"""Models that can't be driven are refused in one line with the reason and the remedy."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from openvino import Core, InferRequest, Tensor
from specdec_openvino import loading, options
from specdec_openvino.backend import OpenVINOBackend
from specdec_openvino.conversion.attention import Tracing
from transformers import PreTrainedModel

from specdec import Generator, ModelError, PluginError
from specdec.masks import DenseCompiler

Make = Callable[[str], PreTrainedModel]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma2", "its attention has soft caps"),
        ("llama4", "it has chunked attention"),
        ("falcon", "its attention can't be switched"),
    ],
)
def test_models_whose_attention_the_engine_lacks(make: Make, name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"can't be converted to OpenVINO: {reason}.*; use backend='hf'$"):
        Generator(make(name), backend="openvino")


def test_an_operation_without_translation_is_named(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "intermediate_size": 72})
    norm = model.model.norm.forward
    monkeypatch.setattr(model.model.norm, "forward", lambda states: norm(torch.special.i0e(states)))
    with pytest.raises(ModelError, match=r"can't be converted to OpenVINO: .*special_i0e.*; use backend='hf'"):
        Generator(model, backend="openvino", numerics="fast")


def test_wrong_numbers_are_found_at_load(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tracing.attention

    def wrong(self: Tracing, *given: Any, **named: Any) -> Any:
        return own(self, *given, **{**named, "scaling": 0.5 * named["scaling"]})

    monkeypatch.setattr(Tracing, "attention", wrong)
    with pytest.raises(ModelError, match=r"has other logits after its conversion to OpenVINO: .*; use backend='hf'"):
        Generator(families.make("LlamaConfig", {**families.SMALL, "intermediate_size": 80}), backend="openvino")


@pytest.mark.parametrize(
    ("where", "error"),
    [((Core, "compile_model"), MemoryError()), ((OpenVINOBackend, "forward"), RuntimeError("std::bad_alloc"))],
)
def test_a_lack_of_memory_has_a_remedy(
    families: ModuleType, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(*where, fail)
    with pytest.raises(ModelError, match=r"^.*: memory ran out \([^\n]*\): free memory, or load the model in [^\n]*$"):
        Generator(families.make("LlamaConfig", {**families.SMALL, "intermediate_size": 56}), backend="openvino")


def test_a_pass_without_an_output_is_a_lack_of_memory(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.make("LlamaConfig", {**families.SMALL, "intermediate_size": 56})
    with Generator(model, backend="openvino") as generator:
        expected = generator.generate([1, 2, 3], max_new_tokens=2)
        with monkeypatch.context() as patched:
            # What OpenVINO leaves in a request whose memory it couldn't allocate, without an error.
            patched.setattr(InferRequest, "get_output_tensor", lambda *_: Tensor(np.zeros((0, 1, 99), np.float32)))
            with pytest.raises(PluginError, match=r"memory ran out \(MemoryError: .*\): free memory, or load"):
                generator.generate([1, 2, 3], max_new_tokens=2)
        assert generator.generate([1, 2, 3], max_new_tokens=2).token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("openvino:device=GPU.7", ModelError, "OpenVINO has no device 'GPU.7' here: it has CPU"),
        ("openvino:precision=int2", PluginError, "precision"),
        ("openvino:speed=high", PluginError, "speed"),
        ("openvin", PluginError, "openvino"),
    ],
)
def test_misspelt_options(make: Make, given: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Generator(make("llama"), backend=given)


def test_numbers_of_eight_bytes(families: ModuleType) -> None:
    model = families.make(*families.TREES["llama"]).double()
    with pytest.raises(ModelError, match="supports models in float32, bfloat16, float16, not float64"):
        Generator(model, backend="openvino")


def test_rounded_weights_need_nncf(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="weights=int4 needs nncf: pip install nncf"):
        Generator(make("llama"), backend="openvino:weights=int4")


def test_a_precision_needs_its_instructions(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "computes_in", lambda *_: False)
    with pytest.raises(ModelError, match="doesn't support bfloat16 on this CPU: leave out precision=bf16"):
        Generator(make("llama"), backend="openvino:precision=bf16")


def test_groups_are_for_four_bits(make: Make) -> None:
    with pytest.raises(ModelError, match=r"group_size is for 4-bit weights, .*: add weights=int4"):
        Generator(make("llama"), backend="openvino:group_size=64")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't load"):
        Generator(str(tmp_path), backend="openvino")


def test_an_object_that_is_no_model() -> None:
    with pytest.raises(ModelError, match=r"PreTrainedModel, or the folder of one, not an object of type int$"):
        OpenVINOBackend.load(5, DenseCompiler())


def test_half_precision_where_the_processor_has_none(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_CAPABILITIES", {torch.float16: "none has it"})
    with pytest.raises(ModelError, match="doesn't support float16 on this CPU: load the model in float32"):
        Generator(families.make(*families.TREES["llama"]).half(), backend="openvino")


def test_weights_elsewhere(families: ModuleType) -> None:
    with pytest.raises(ModelError, match="are offloaded"):
        Generator(families.make(*families.TREES["llama"]).to("meta"), backend="openvino")


def test_windows_that_only_a_mask_has(families: ModuleType) -> None:
    model = families.make("PhimoeConfig", {**families.SMALL, "sliding_window": 20, "num_local_experts": 2})
    experts = model.get_experts_implementation()
    with pytest.raises(ModelError, match="its windows are made by its own masks"):
        Generator(model, backend="openvino")
    assert model.get_experts_implementation() == experts != {"": "batched_mm"}, "batched only while it was traced"
