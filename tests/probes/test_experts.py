"""The remedy for experts is named exactly where following it gives exact numerics."""

from typing import Any

import pytest
import torch

from specdec import Generator
from specdec.probes import walk
from specdec.probes.experts import batched_experts, remedy
from tests.support import families

SMALL, EXPERTS = families.SMALL, families.EXPERTS
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "aria": ("AriaTextConfig", {**SMALL, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}),
    "dbrx": (
        "DbrxConfig",
        {"vocab_size": families.VOCAB, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
         "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}},
    ),
    "qwen2_moe": ("Qwen2MoeConfig", {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "glm4_moe": (
        "Glm4MoeConfig",
        {**SMALL, "head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "minimax_m2": ("MiniMaxM2Config", {**SMALL, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "jetmoe": ("JetMoeConfig", {**SMALL, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral": families.TREES["mixtral"],
    "qwen3_moe": families.TREES["qwen3_moe"],
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_the_remedy_is_named_exactly_where_following_it_gives_exact_numerics(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_SECONDS", 60.0)  # so that all trees are tried on a busy machine
    model = families.make(*MIXTURES[name])
    before = Generator(model).numerics
    settings = model.get_experts_implementation()
    if before.is_bit_exact:
        pytest.skip("there is nothing to remedy here")
    is_named = "set_experts_implementation" in before.inexact
    assert model.get_experts_implementation() == settings, "it was left as it was"
    model.set_experts_implementation("batched_mm")
    assert Generator(model).numerics.is_bit_exact == is_named


def test_experts_are_as_before_even_if_the_trial_fails() -> None:
    model: Any = families.make(*MIXTURES["mixtral"])
    before = model.get_experts_implementation()
    with batched_experts(model) as is_changed:
        assert is_changed
    assert model.get_experts_implementation() == before
    assert not remedy(model, lambda: bool(1 // 0))
    assert model.get_experts_implementation() == before


@pytest.mark.parametrize(
    "model", [torch.nn.Linear(2, 2), families.make(*families.TREES["llama"])], ids=["none", "dense"]
)
def test_models_without_experts_have_no_such_remedy(model: Any) -> None:
    assert not remedy(model, lambda: True)
