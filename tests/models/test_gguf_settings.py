"""What a GGUF file says is applied as a configuration of transformers' own would, or refused or named."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdec import Generator, ModelError
from specdec.models.gguf_header import GgufHeader
from specdec.models.gguf_settings import gguf_config, remark_on
from specdec.models.loading import load_pretrained, load_pretrained_tokenizer
from tests.demo import tiny_gguf
from tests.models.test_gguf_file import model_of

THETA = 100000.0
POSITIONS = torch.tensor([[0, 1, 2, 40, 700, 3000, 9000, 30000]])
IDS = torch.tensor([[3, 4, 5, 6, 3, 9, 8, 4]])
Add = Callable[[Any], None]


@pytest.fixture(autouse=True, scope="module")
def _libraries() -> None:
    for library in ("gguf", "accelerate"):
        pytest.importorskip(library, reason="a GGUF file is read with gguf and accelerate")


def config_of(path: Path) -> Any:
    return gguf_config(GgufHeader.of(path))


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS, position_ids=POSITIONS, use_cache=False).logits
    return found


def llama3_divisors(width: int, factor: float, original: int) -> np.ndarray:
    """As llama.cpp's converter writes them for ``rope_type: llama3``."""
    divisors = []
    for index in range(0, width, 2):
        length = 2 * math.pi * THETA ** (index / width)
        smooth = (original / length - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / factor + smooth) if smooth else factor
        divisors.append(1.0 if length < original / 4.0 else factor if length > original else between)
    return np.array(divisors, dtype=np.float32)


def with_divisors(factor: float, original: int) -> Add:
    def add(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", llama3_divisors(16, factor, original))

    return add


def with_linear(writer: Any) -> None:
    from gguf import RopeScalingType

    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def with_yarn(writer: Any) -> None:
    from gguf import RopeScalingType

    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_rope_scaling_yarn_attn_factor(1.25)
    writer.add_rope_scaling_yarn_beta_fast(16.0)


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED: dict[str, tuple[str, Add, dict[str, Any]]] = {
    "Llama 3.1's": (
        "llama",
        with_divisors(8.0, 8192),
        {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192},
    ),
    "Llama 3.2's, of another length": (
        "llama",
        with_divisors(32.0, 2048),
        {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 2048},
    ),
    "linear": ("llama", with_linear, {"rope_type": "linear", "factor": 4.0}),
    "an old file's linear one": (
        "llama",
        lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0),
        {"rope_type": "linear", "factor": 2.0},
    ),
    "YaRN": (
        "qwen2",
        with_yarn,
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.25,
            "beta_fast": 16.0,
        },
    ),
}


@pytest.mark.parametrize("kind", SCALED)
def test_a_scaled_rotation_is_applied(kind: str, tmp_path: Path) -> None:
    architecture, add, scaling = SCALED[kind]
    worth = tiny_gguf.write(tmp_path / "x.gguf", architecture, add)
    model, _ = load_pretrained(str(tmp_path / "x.gguf"))
    found = logits_of(model)
    expected = logits_of(model_of(architecture, worth, {"rope_theta": THETA, **scaling}))
    assert torch.allclose(found, expected, atol=1e-4)
    plain = logits_of(model_of(architecture, worth))
    assert (plain - expected).abs().max() > 2e-3, "the scaling makes a difference"
    model.save_pretrained(tmp_path / "saved")
    saved, _ = load_pretrained(str(tmp_path / "saved"), tokenizer=lambda text: text)
    assert torch.equal(logits_of(saved), found)


def test_a_file_whose_divisors_are_one_has_a_plain_rotation(tmp_path: Path) -> None:
    tiny_gguf.write(
        tmp_path / "x.gguf", more=lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    )
    assert config_of(tmp_path / "x.gguf").rope_parameters["rope_type"] == "default"


def test_the_frequency_base_of_a_family_that_transformers_forgets_is_applied(tmp_path: Path) -> None:
    """StarCoder2's base has a default in transformers, whatever a file says, and Qwen3's width per head as well."""
    tiny_gguf.write(tmp_path / "x.gguf", "starcoder2", lambda writer: writer.add_layer_norm_eps(1e-6))
    config = config_of(tmp_path / "x.gguf")
    assert config.rope_parameters["rope_theta"] == THETA
    assert config.norm_epsilon == pytest.approx(1e-6)


def test_long_and_short_factors_are_applied(tmp_path: Path) -> None:
    short, long = np.linspace(1, 2, 6, dtype=np.float32), np.linspace(1, 40, 6, dtype=np.float32)

    def add(writer: Any) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(1.19)
        writer.add_sliding_window(0)
        writer.add_tensor("rope_factors_long.weight", long)
        writer.add_tensor("rope_factors_short.weight", short)
        writer.add_uint32("phi3.rope.dimension_count", 12)

    tiny_gguf.write(tmp_path / "x.gguf", "phi3", add)
    config = config_of(tmp_path / "x.gguf")
    assert config.rope_parameters == {
        "rope_type": "longrope",
        "rope_theta": THETA,
        "partial_rotary_factor": 0.75,
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
        "original_max_position_embeddings": 64,
        "attention_factor": pytest.approx(1.19),
    }
    assert (config.original_max_position_embeddings, config.sliding_window) == (64, None)


APPLIED: dict[str, tuple[str, Add, str, Any]] = {
    "a window": ("phi3", lambda it: it.add_sliding_window(100), "sliding_window", 100),
    "a soft cap": ("gemma2", lambda it: it.add_final_logit_softcapping(20.0), "final_logit_softcapping", 20.0),
    "a pattern of windows": (
        "gemma3",
        lambda it: it.add_sliding_window_pattern([False, True]),
        "layer_types",
        ["full_attention", "sliding_attention"],
    ),
    "the experts' norm": ("qwen3moe", lambda it: it.add_expert_weights_norm(False), "norm_topk_prob", False),
}


@pytest.mark.parametrize("kind", APPLIED)
def test_a_setting_of_the_family_is_applied(kind: str, tmp_path: Path) -> None:
    architecture, add, name, value = APPLIED[kind]
    tiny_gguf.write(tmp_path / "x.gguf", architecture, add)
    assert getattr(config_of(tmp_path / "x.gguf"), name) == value


@pytest.mark.parametrize(("num_layers", "scalar"), [(42, 256), (46, tiny_gguf.WIDTH // tiny_gguf.HEADS)])
def test_the_largest_gemma_scales_attention_as_llama_cpp_knows(num_layers: int, scalar: int, tmp_path: Path) -> None:
    """No key has this scale: llama.cpp knows Gemma 2 27B by its 46 layers, and Gemma 3 27B by its 62."""
    tiny_gguf.write(tmp_path / "x.gguf", "gemma2", lambda writer: writer.add_block_count(num_layers))
    assert config_of(tmp_path / "x.gguf").query_pre_attn_scalar == scalar


FAMILIES: dict[str, Callable[[Any], object]] = {
    "falcon": lambda it: (it.add_layer_norm_eps(1e-5), it.add_tensor_data_layout("jploski")),
    "gpt2": lambda it: (it.add_layer_norm_eps(1e-5), it.add_head_count_kv(4)),
    "bloom": lambda it: (it.add_layer_norm_eps(1e-5), it.add_head_count_kv(4)),
    "stablelm": lambda it: (it.add_layer_norm_eps(1e-5), it.add_rope_dimension_count(4), it.add_parallel_residual(0)),
    "starcoder2": lambda it: it.add_layer_norm_eps(1e-5),
    "nemotron": lambda it: (it.add_layer_norm_eps(1e-5), it.add_string("nemotron.rope.scaling.type", "none")),
    "mamba": lambda it: (it.add_head_count(0), it.add_head_count_kv(0), it.add_ssm_conv_kernel(4)),
    "qwen2moe": lambda it: (it.add_expert_count(8), it.add_expert_shared_feed_forward_length(32)),
    "gemma2": lambda it: (it.add_attn_logit_softcapping(50.0), it.add_sliding_window(64)),
    "gemma3": lambda it: it.add_float32("gemma3.rope.freq_base_swa", 10000.0),
    "gemma4": lambda it: (
        it.add_key_length(512), it.add_value_length(512), it.add_rope_dimension_count(512),
        it.add_uint32("gemma4.rope.dimension_count_swa", 256), it.add_uint32("gemma4.attention.key_length_swa", 256),
        it.add_tensor("rope_freqs.weight", np.array([1.0] * 64 + [1e30] * 192, dtype=np.float32)),
    ),
    "minimax-m2": lambda it: (it.add_expert_count(4), it.add_uint32("minimax-m2.expert_gating_func", 2)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_keys_of_a_familys_files_are_known(family: str, tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "x.gguf", family, FAMILIES[family])
    config_of(tmp_path / "x.gguf")
    assert remark_on(tmp_path / "x.gguf") == ""


def test_the_tensors_of_experts_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two of a file's tensors are one of the model's, and transformers takes the width of experts for its default."""
    names = "ffn_gate", "ffn_up", "ffn_down"
    every = tiny_gguf.weights()
    dense = {name: each for name, each in every.items() if not any(part in name for part in names)}
    monkeypatch.setattr(tiny_gguf, "weights", lambda _: dense)

    def add(writer: Any) -> None:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(tiny_gguf.INNER)
        writer.add_key_length(16)
        for layer in range(tiny_gguf.LAYERS):
            for part in names:
                own = every[f"blk.{layer}.{part}.weight"]
                writer.add_tensor(
                    f"blk.{layer}.{part}_exps.weight", np.stack([own * (index + 1) for index in range(4)])
                )
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", every["token_embd.weight"][:4].copy())
            for part in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"blk.{layer}.{part}.weight", np.ones(16, dtype=np.float32))

    tiny_gguf.write(tmp_path / "x.gguf", "qwen3moe", add)
    model, _ = load_pretrained(str(tmp_path / "x.gguf"))
    experts = model.model.layers[1].mlp.experts
    down = torch.from_numpy(every["blk.1.ffn_down.weight"])
    assert torch.equal(experts.down_proj[2], down * 3)
    assert experts.gate_up_proj.shape == (4, 2 * tiny_gguf.INNER, tiny_gguf.WIDTH)


def test_gemma_s_linear_scaling_is_of_layers_with_full_attention(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "x.gguf", "gemma3", with_linear)
    rotations = config_of(tmp_path / "x.gguf").rope_parameters
    assert rotations["full_attention"] == {"rope_type": "linear", "factor": 4.0, "rope_theta": THETA}
    assert rotations["sliding_attention"]["rope_type"] == "default"


REFUSED: dict[str, tuple[str, Add, str]] = {
    "a rotation": (
        "llama",
        lambda it: it.add_tensor("rope_freqs.weight", np.linspace(1, 3, 8, dtype=np.float32)),
        r"rope_freqs\.weight",
    ),
    "long factors without tensors": (
        "llama",
        lambda it: it.add_string("llama.rope.scaling.type", "longrope"),
        r"rope\.scaling\.type = longrope",
    ),
    "another YaRN": (
        "qwen2",
        lambda it: (with_yarn(it), it.add_float32("qwen2.rope.scaling.yarn_ext_factor", 0.5)),
        r"rope\.scaling\.yarn_ext_factor = 0\.5",
    ),
    "part of a head": ("qwen2", lambda it: it.add_uint32("qwen2.rope.dimension_count", 8), "rope.dimension_count = 8"),
    "a window": ("llama", lambda it: it.add_sliding_window(100), r"attention\.sliding_window = 100"),
    "a window that no layer has": ("qwen2", lambda it: it.add_sliding_window(100), r"attention\.sliding_window = 100"),
    "an attention scale": ("llama", lambda it: it.add_attention_scale(0.3), r"attention\.scale = 0\.3"),
    "a logit scale": ("llama", lambda it: it.add_logit_scale(8.0), "logit_scale = 8"),
    "a residual scale": ("llama", lambda it: it.add_residual_scale(0.22), r"residual_scale = 0\.22"),
    "experts": ("llama", lambda it: it.add_expert_count(8), "expert_count = 8"),
    "attention to later tokens": ("llama", lambda it: it.add_causal_attention(False), r"attention\.causal = False"),
    "biases": (
        "llama",
        lambda it: it.add_tensor("blk.0.attn_q.bias", np.ones(64, dtype=np.float32)),
        r"blk\.0\.attn_q\.bias",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_transformers_model_lacks_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    architecture, add, named = REFUSED[kind]
    tiny_gguf.write(tmp_path / "x.gguf", architecture, add)
    with pytest.raises(
        ModelError, match=rf"has no place for (.*, )?{named}, without .* give the folder or hub name of"
    ):
        load_pretrained(str(tmp_path / "x.gguf"))


def with_draft_block(writer: Any) -> None:
    """A whole block after the last layer, as llama.cpp's converter writes it for heads of DeepSeek's kind."""
    block = tiny_gguf.LAYERS
    for name, tensor in tiny_gguf.weights().items():
        if name.startswith("blk.0."):
            writer.add_tensor(name.replace("blk.0.", f"blk.{block}."), tensor)
    for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm"):
        writer.add_tensor(f"blk.{block}.nextn.{part}.weight", np.ones(64, dtype=np.float32))
    writer.add_uint32("llama.nextn_predict_layers", 1)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_block_that_only_drafts_is_left_out(is_counted: bool, tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        with_draft_block(writer)
        writer.add_block_count(tiny_gguf.LAYERS + is_counted)

    worth = tiny_gguf.write(tmp_path / "x.gguf", more=add)
    model, _ = load_pretrained(str(tmp_path / "x.gguf"))
    assert model.config.num_hidden_layers == tiny_gguf.LAYERS
    assert torch.allclose(logits_of(model), logits_of(model_of("llama", worth)), atol=1e-4)


def test_the_kinds_of_layers_are_those_that_are_left(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        writer.add_tensor(f"blk.{tiny_gguf.LAYERS}.nextn.eh_proj.weight", np.ones(64, dtype=np.float32))
        writer.add_block_count(tiny_gguf.LAYERS + 1)
        writer.add_sliding_window_pattern([False, True, True])

    tiny_gguf.write(tmp_path / "x.gguf", "gemma3", add)
    config = config_of(tmp_path / "x.gguf")
    assert config.layer_types == ["full_attention", "sliding_attention"]


def test_a_setting_of_a_wrong_type_is_refused_by_name(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "x.gguf", "qwen2", lambda writer: writer.add_uint32("qwen2.rope.dimension_sections", 8))
    with pytest.raises(ModelError, match=r"has no place for rope\.dimension_sections = 8"):
        load_pretrained(str(tmp_path / "x.gguf"))


def harmless(writer: Any) -> None:
    """Keys with the values that transformers applies, or that no pass depends on."""
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_sliding_window(256)
    writer.add_attention_scale(0.25)
    writer.add_logit_scale(1.0)
    writer.add_expert_count(0)
    writer.add_eot_token_id(2)
    writer.add_rope_scaling_finetuned(True)
    writer.add_string("quantize.imatrix.file", "x.dat")


def test_keys_that_change_nothing_are_accepted_in_silence_and_unknown_ones_are_named(tmp_path: Path) -> None:
    def unknown(writer: Any) -> None:
        harmless(writer)
        writer.add_float32("llama.attention.novelty", 0.5)
        writer.add_tokenizer_pre("smaller")

    (known_notes,) = notes_of(tmp_path / "known.gguf", harmless)
    assert known_notes == "the GGUF file's weights are dequantised to float32"
    (notes,) = notes_of(tmp_path / "unknown.gguf", unknown)
    assert "its keys llama.attention.novelty are unknown, and were left out" in notes
    assert "transformers doesn't know its pre-tokenizer 'smaller'" in notes


def notes_of(path: Path, add: Add) -> tuple[str, ...]:
    tiny_gguf.write(path, more=add)
    return Generator(str(path), proposer="prompt_lookup", backend="hf").generate([3, 4], max_new_tokens=1).notes


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_space_before_the_text_is_added_as_the_file_says(adds_space: bool, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "b"]
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0, 0.0, 0.0, -2.0, -3.0, -1.0, -4.0])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(adds_space)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = load_pretrained_tokenizer(str(tmp_path / "x.gguf"))
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab")["input_ids"]) == (["▁a", "b"] if adds_space else ["a", "b"])
    assert tokenizer.decode(tokenizer("ab")["input_ids"]) == "ab"
