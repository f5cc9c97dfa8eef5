"""Keys of heads' configurations: harmless ones load as before, others are refused by name or named in a note."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specdec import ModelError
from specdec.heads.eagle import read_eagle_head
from specdec.heads.eagle3_folder import REMEDIES, read_head
from specdec.heads.files import check_folder
from specdec.heads.medusa_folder import read_medusa_heads
from specdec.heads.settings import notes_on_settings
from specdec.heads.strategies.eagle import EagleProposer
from specdec.heads.strategies.medusa import MedusaProposer
from tests.heads import test_eagle3_folder as eagle3
from tests.heads import test_eagle_folder as eagle
from tests.heads import test_medusa as medusa

Settings = dict[str, Any]
# The keys that published configurations have, by their kind; sizes are those of the head that is written.
COMMON: Settings = {
    "architectures": ["LlamaForCausalLMEagle3"], "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0,
    "hidden_act": "silu", "initializer_range": 0.02, "model_type": "llama", "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2", "use_cache": True, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED: dict[str, Settings] = {
    "Llama's": COMMON | {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "rope_scaling": None},
    "Qwen's": COMMON
    | {"attention_dropout": 0.0, "max_window_layers": 48, "sliding_window": None, "use_sliding_window": False},
    "Qwen's with a window that isn't used": COMMON | {"sliding_window": 20, "use_sliding_window": False},
    "Llama's with a window that its family hasn't": COMMON | {"sliding_window": 20},
    "one with a window of the whole text": COMMON | {"sliding_window": 77, "use_sliding_window": True},
    "of a target with images": COMMON
    | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}, "rope_parameters": None, "rope_theta": 5000.0},
    "of a target with images, anew": COMMON
    | {"rope_parameters": {"rope_type": "default", "mrope_interleaved": True, "rope_theta": 5000.0}},
    "SGLang's numbers": COMMON
    | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True}},
    "vLLM's numbers": COMMON | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}},
    "Model Optimizer's": COMMON
    | {"eagle_config": {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
                        "use_mtp_layernorm": False, "parallel_draft_step": 1, "has_lm_head": True}},
    "SpecForge's": COMMON | {"target_model_type": "gemma3_text", "additional_fc": False, "reuse_target_lm_head": True},
    "AngelSlim's": COMMON | {"modal_type": "LLM", "head_dim": 80, "tie_word_embeddings": True},
    "Gemma's usual scale": COMMON | {"head_dim": 6, "query_pre_attn_scalar": 6, "final_logit_softcapping": None},
    "Gemma's usual scale, of the sizes": COMMON
    | {"head_dim": None, "hidden_size": 24, "query_pre_attn_scalar": 6.0},
    "Granite's usual scale": COMMON | {"attention_multiplier": 0.408248290463863},
    "an activation in capitals, and no quantisation": COMMON | {"hidden_act": "SiLU", "quantization_config": {}},
    "no compression, and a rotation in capitals": COMMON
    | {"compression_config": {}, "position_embedding_type": "RoPE"},
    "OpenAI's target's": COMMON | {"model_type": "gpt_oss", "num_local_experts": 16, "experts_per_token": 4},
}  # fmt: skip


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_configurations_are_read_as_before_and_without_a_note(kind: str, tmp_path: Path) -> None:
    head = eagle3.written(tmp_path)
    before = eagle3.settings_of(tmp_path)
    eagle3.with_settings(tmp_path, **PUBLISHED[kind])
    found = read_head(tmp_path, eagle3.target(), torch.bfloat16)
    assert eagle3.equal(head, found)
    positions = torch.arange(5)[None]
    rotation = torch.cat(head.rotary.at(positions, torch.float32))
    assert torch.equal(torch.cat(found.rotary.at(positions, torch.float32)), rotation)
    assert found.config.target_layers(eagle3.LAYERS) == (2, 4, 6)
    assert notes_on_settings(tmp_path) == ()
    assert before["hidden_size"] == found.config.hidden_size


def test_a_speculators_configuration_is_read_without_a_note(tmp_path: Path) -> None:
    eagle3.written(tmp_path)
    layer = eagle3.settings_of(tmp_path) | {"layer_types": ["full_attention"], "_attn_implementation": "sdpa"}
    settings = {
        "architectures": ["Eagle3Speculator"], "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": 24, "eagle_aux_hidden_state_layer_ids": [2, 4, 6], "embed_requires_grad": False,
        "has_no_defaults_at_init": False, "norm_before_residual": False, "speculators_config": {"algorithm": "eagle3"},
        "speculators_model_type": "eagle3", "speculators_version": "0.9.0", "target_hidden_size": None,
        "tie_word_embeddings": False, "transformer_layer_config": layer, "transformers_version": "4.57.1",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    read_head(tmp_path, eagle3.target(), torch.bfloat16)
    assert notes_on_settings(tmp_path) == ()


REFUSED: dict[str, tuple[Settings, str]] = {
    "an activation": ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
    "Qwen's window": ({"sliding_window": 20, "use_sliding_window": True}, "sliding_window = 20"),
    "Mistral's window": ({"sliding_window": 20, "model_type": "mistral"}, "sliding_window = 20"),
    "a window of unknown size": ({"layer_types": ["sliding_attention"]}, 'layer_types = ["sliding_attention"]'),
    "layers of several kinds": (
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20},
        'layer_types = ["full_attention", "sliding_attention"]',
    ),
    "attention to chunks": (
        {"layer_types": ["chunked_attention"], "sliding_window": 20},
        'layer_types = ["chunked_attention"]',
    ),
    "a part of a head": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "a part of a head in the rotation": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor = 0.5",
    ),
    "a rotation for each kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0, "rope_type": "default"}}},
        "rope_parameters.full_attention = ",
    ),
    "a scale": ({"logits_scaling": 8.0}, "logits_scaling = 8.0"),
    "another scale than Granite's": ({"attention_multiplier": 0.5}, "attention_multiplier = 0.5"),
    "a window without a length": (
        {"sliding_window": 20, "max_position_embeddings": None, "model_type": "mistral"},
        "sliding_window = 20",
    ),
    "another scale of attention": ({"query_pre_attn_scalar": 8}, "query_pre_attn_scalar = 8"),
    "a soft cap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    "quantised tensors": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config = "),
    "features without more layers": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = false"),
    "no last norm": ({"eagle_config": {"use_last_layernorm": False}}, "eagle_config.use_last_layernorm = false"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_another_computation_is_refused_by_name_before_a_model_is_loaded(kind: str, tmp_path: Path) -> None:
    settings, named = REFUSED[kind]
    eagle3.written(tmp_path)
    check_folder(tmp_path, REMEDIES["eagle3"], {"eagle3"})
    eagle3.with_settings(tmp_path, **settings)
    for check in (
        lambda: check_folder(tmp_path, REMEDIES["eagle3"], {"eagle3"}),
        lambda: read_head(tmp_path, eagle3.target(), torch.float32),
    ):
        with pytest.raises(ModelError, match="which specdec's heads don't compute: give the folder of an") as caught:
            check()
        assert named in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"eagle_config": {"layer_ids": [1, 2, 5]}}, "eagle_config.layer_ids"),
        ({"layer_ids": [2, 4, 7]}, r"layer_ids = \[2, 4, 7\]"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 7], "target_layer_ids": [2, 4, 7]}, "target_layer_ids"),
        ({"target_layer_ids": [1, 3, 6], "aux_hidden_state_layer_ids": [2, 4, 6]}, "target_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 7], "layer_ids": [2, 4, 6]}, "has layer_ids"),
    ],
)
def test_ids_that_may_mean_other_layers_are_refused_by_name(settings: Settings, named: str, tmp_path: Path) -> None:
    eagle3.written(tmp_path)
    eagle3.with_settings(tmp_path, **settings)
    with pytest.raises(ModelError, match=rf"{named}.*the head reads layers \[2, 4, .\] here; name the right ones in "):
        read_head(tmp_path, eagle3.target(), torch.float32)


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}}, (2, 3, 6)),
        ({"target_layer_ids": [2, 4, 6]}, (3, 5, 7)),
        ({"aux_hidden_state_layer_ids": [1, 3, 5]}, (1, 3, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 7], "target_layer_ids": [1, 3, 6]}, (2, 4, 7)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 6],
          "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 6]}}, (2, 3, 6)),
    ],
)  # fmt: skip
def test_ids_of_layers_are_read_in_every_spelling(settings: Settings, layers: tuple[int, ...], tmp_path: Path) -> None:
    eagle3.written(tmp_path)
    eagle3.with_settings(tmp_path, **settings)
    found = read_head(tmp_path, eagle3.target(), torch.float32)
    assert found.config.target_layers(eagle3.LAYERS) == layers


@pytest.mark.parametrize("scaling", [{"factor": 4.0}, {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}])
def test_the_older_spelling_of_a_scaled_rotation_is_applied(scaling: Settings, tmp_path: Path) -> None:
    kind = "llama3" if len(scaling) > 1 else "linear"
    rotation = {**scaling, **({"original_max_position_embeddings": 32} if kind == "llama3" else {})}
    eagle3.written(tmp_path)
    eagle3.with_settings(tmp_path, rope_parameters=None, rope_theta=5000.0, rope_scaling={"type": kind, **rotation})
    found = read_head(tmp_path, eagle3.target(), torch.float32)
    config = LlamaConfig(
        head_dim=6,
        max_position_embeddings=77,
        rope_parameters={"rope_type": kind, "rope_theta": 5000.0, **rotation},
    )
    positions = torch.arange(70)[None]
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    for one, other in zip(found.rotary.at(positions, torch.float32), expected, strict=True):
        assert torch.allclose(one[:, 0], other, atol=1e-6)


def test_the_first_eagles_norms_are_its_own(tmp_path: Path) -> None:
    settings, tensors = eagle.published(0)
    eagle.write(tmp_path, settings | {"eagle_config": {"use_last_layernorm": False}}, tensors)
    EagleProposer(head=tmp_path).check_files()
    read_eagle_head(tmp_path, eagle.target(), torch.float32)
    eagle.write(tmp_path, settings | {"eagle_config": {"use_last_layernorm": True}}, tensors)
    for check in (
        EagleProposer(head=tmp_path).check_files,
        lambda: read_eagle_head(tmp_path, eagle.target(), torch.float32),
    ):
        with pytest.raises(ModelError, match="use_last_layernorm = true, which specdec's heads don't compute"):
            check()


def test_medusas_settings_are_checked_if_there_are_any(tmp_path: Path) -> None:
    medusa.write(tmp_path, *medusa.LAYOUTS["official"][:2])
    read_medusa_heads(tmp_path, medusa.target(), torch.float32)
    published = {"medusa_num_heads": 2, "medusa_num_layers": 1, "version": "2", "base_model_name_or_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(published))
    read_medusa_heads(tmp_path, medusa.target(), torch.float32)
    assert notes_on_settings(tmp_path) == ()
    of_the_target = {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768}
    of_the_target |= {"partial_rotary_factor": 0.5, "logit_scale": 0.1, "rope_scaling": 3, "layer_types": 3}
    (tmp_path / "config.json").write_text(json.dumps({**published, **of_the_target, "hidden_act": "SiLU"}))
    read_medusa_heads(tmp_path, medusa.target(), torch.float32)
    assert notes_on_settings(tmp_path) == ()
    for wrong in ({"hidden_act": "gelu"}, {"quantization_config": {"quant_method": "fp8"}}):
        (tmp_path / "config.json").write_text(json.dumps({**published, **wrong}))
        with pytest.raises(ModelError, match=r"has [a-z_]+ = .*, which specdec's heads don't compute: give the"):
            read_medusa_heads(tmp_path, medusa.target(), torch.float32)
    (tmp_path / "config.json").write_text("3")
    with pytest.raises(ModelError, match=r"has an incomplete or unknown configuration \(.*\): give the folder of Med"):
        MedusaProposer(head=tmp_path).check_files()


@pytest.mark.parametrize(
    "settings",
    [
        {"sliding_window": "4096", "model_type": "mistral"},
        {"layer_types": 3},
        {"num_attention_heads": "4"},
        {"hidden_size": "24"},
        {"transformer_layer_config": {"layer_types": True}},
    ],
)
def test_values_of_wrong_types_are_refused_before_a_model_is_loaded(settings: Settings, tmp_path: Path) -> None:
    eagle3.written(tmp_path)
    eagle3.with_settings(tmp_path, **{"head_dim": None, **settings})
    for check in (
        lambda: check_folder(tmp_path, REMEDIES["eagle3"], {"eagle3"}),
        lambda: read_head(tmp_path, eagle3.target(), torch.float32),
    ):
        with pytest.raises(
            ModelError, match=r"has an incomplete or unknown configuration \(.*\): give the folder of an"
        ):
            check()


def test_unknown_keys_are_named_in_a_note(tmp_path: Path) -> None:
    eagle3.written(tmp_path)
    eagle3.with_settings(tmp_path, novelty=3, eagle_config={"twist": 1}, rope_scaling={"rope_type": "default", "p": 2})
    assert notes_on_settings(tmp_path) == (
        "the head's configuration has unknown keys, which were left out: novelty, eagle_config.twist, rope_scaling.p",
    )
