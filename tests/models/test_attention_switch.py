"""Attention that can be exchanged and attention that can't: observed, not looked up."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specdec import Generator, ModelError
from specdec.models.attention_switch import why_not_switchable
from specdec.models.encoder_decoders import decoder_of
from specdec.models.fused_attention import without_cudnn
from tests.support import encoder_decoders, families
from tests.support.own_attention import OwnAttention

NO_INTERFACE = "its attention can't be switched, as its code doesn't use transformers' AttentionInterface"


@pytest.mark.parametrize("name", families.TREES)
def test_the_attention_of_models_that_ask_transformers_for_it_is_switchable(name: str) -> None:
    model = families.make(*families.TREES[name])
    assert not why_not_switchable(model)


@pytest.mark.parametrize("name", [*families.FIXED, *families.CHAINS])
def test_the_attention_of_models_with_one_of_their_own_is_not(name: str) -> None:
    model = families.make(*{**families.FIXED, **families.CHAINS}[name])
    before, known = model.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS)
    assert why_not_switchable(model) == NO_INTERFACE
    assert model.config._attn_implementation == before
    assert set(ALL_ATTENTION_FUNCTIONS) == known


def test_a_model_with_one_layer_of_its_own_kind_is_not_switchable() -> None:
    model: Any = families.make(*families.TREES["llama"])
    fixed: Any = families.make("LlamaConfig", {**families.SMALL, "attn_implementation": "eager"})
    model.model.layers[1].self_attn.config = fixed.config  # its name for attention is never changed
    assert why_not_switchable(model) == NO_INTERFACE


def test_a_model_that_breaks_under_another_attention_is_not_switchable() -> None:
    model: Any = families.make(*families.TREES["llama"])
    model.model.layers[1].self_attn.register_forward_pre_hook(_broken)
    assert "with another one, its forward raised RuntimeError: broken" in why_not_switchable(model)


def _broken(module: Any, inputs: Any) -> None:
    if module.config._attn_implementation.startswith("specdec"):
        raise RuntimeError("broken")


@pytest.mark.parametrize("name", families.FIXED)
def test_a_mask_with_an_attention_of_its_own_is_refused_where_none_can_be_set(name: str) -> None:
    with pytest.raises(
        ModelError, match=r"mask=OwnAttention.* can't be used with .*can't be switched.*; leave out mask="
    ):
        Generator(families.make(*families.FIXED[name]), mask=OwnAttention())


@pytest.mark.parametrize("name", families.FIXED)
def test_a_fixed_attention_is_why_exact_numerics_cannot_be_had(name: str) -> None:
    generator = Generator(families.make(*families.FIXED[name]), proposer="jacobi")
    assert generator.shapes.takes_trees
    assert NO_INTERFACE in generator.numerics.inexact


@pytest.mark.parametrize("was_enabled", [True, False])
def test_cudnn_is_barred_on_a_gpu_alone_and_restored(was_enabled):
    cuda, before = torch.backends.cuda, torch.backends.cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(was_enabled)
    try:
        with without_cudnn(torch.device("cuda")):
            assert not cuda.cudnn_sdp_enabled()
        assert cuda.cudnn_sdp_enabled() is was_enabled
        with without_cudnn(torch.device("cpu")):
            assert cuda.cudnn_sdp_enabled() is was_enabled
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]), without_cudnn(torch.device("cuda")):
            assert cuda.cudnn_sdp_enabled(), "no other kernel is left"
    finally:
        cuda.enable_cudnn_sdp(before)


def test_an_encoders_states_are_no_obstacle_and_a_bias_by_position_is_one() -> None:
    assert why_not_switchable(decoder_of(encoder_decoders.make("bart"))) == ""
    assert "adds a bias by position" in why_not_switchable(decoder_of(encoder_decoders.make("t5")))
