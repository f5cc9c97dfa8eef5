"""The copy in bfloat16 that text is written with, and heads are trained on."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.heads.training.faster_copy import faster_copy


def model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, tie_word_embeddings=True, **sizes)).eval().to(dtype)


@pytest.fixture
def _with_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.heads.training.faster_copy.computes_in_bfloat16", lambda _: True)


@pytest.mark.usefixtures("_with_instructions")
def test_the_copy_is_the_rounded_model_and_the_model_is_left_as_it_is() -> None:
    target = model()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    copy = faster_copy(target)
    assert copy.dtype == torch.bfloat16
    assert copy.lm_head.weight is copy.model.embed_tokens.weight
    assert copy.model.rotary_emb.inv_freq.dtype == torch.float32
    assert copy.config is not target.config
    for name, tensor in copy.state_dict().items():
        assert torch.equal(tensor, before[name].bfloat16())
        assert torch.equal(target.state_dict()[name], before[name])
    tokens = torch.arange(20)[None]
    expected = model().bfloat16()
    expected.model.rotary_emb.inv_freq = target.model.rotary_emb.inv_freq
    assert torch.equal(copy(tokens).logits, expected(tokens).logits)


@pytest.mark.usefixtures("_with_instructions")
def test_half_models_are_not_copied() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        target = model(dtype)
        assert faster_copy(target) is target


def test_without_instructions_nothing_is_copied() -> None:
    target = model()
    assert faster_copy(target) is target
