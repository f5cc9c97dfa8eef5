"""Random heads of EAGLE's kinds with the keys and tensors of published folders, for a target of 12 layers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH, VOCAB, LAYERS, THETA, MASK = 16, 40, 12, 500.0, 7
KEPT = torch.tensor([*range(3, 15), *range(20, 32)])  # a draft vocabulary
Tensors = dict[str, torch.Tensor]
LAYER: dict[str, Any] = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 20, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 1, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "rope_theta": THETA, "max_position_embeddings": 64, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "initializer_range": 0.02, "use_cache": True,
}  # fmt: skip
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3", "speculators_version": "0.7.0", "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": len(KEPT), "transformer_layer_config": LAYER, "embed_requires_grad": False,
    "speculators_config": {"algorithm": "eagle3"}, "target_hidden_size": None,
}  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """A published folder.

    Attributes:
        strategy: that reads it.
        settings: of ``config.json``.
        first: prefix of the first layer's tensors.
        has: parts of the tensors besides the usual ones: "biases", "norms" of queries and keys, "input_norm",
            "fc_norm", "mask", "bias" of ``fc``, "q biases" of the first EAGLE's heads, and "embeddings".
        num_layers: of the head.
        states: the target's layers whose states are read.
        reference: what the reference's constructor takes besides the sizes.
        is_bin: tensors are in a ``.bin`` file.
        renamed: parts of tensors' names that differ.
        width: of the head.
        more_files: JSON files beside ``config.json``.
    """

    strategy: str
    settings: Mapping[str, Any]
    first: str = "midlayer."
    has: tuple[str, ...] = ()
    num_layers: int = 1
    states: tuple[int, ...] = (2, 6, 9)
    reference: Mapping[str, Any] = field(default_factory=dict)
    is_bin: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    width: int = WIDTH
    more_files: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> Tensors:
        """Random ones by the official names."""
        draw, width, is_first = torch.Generator().manual_seed(3), self.width, self.strategy == "eagle"
        joined = width if is_first else 2 * width
        named: dict[str, tuple[int, ...]] = {
            "fc": (width, 2 * width if is_first else len(self.states) * WIDTH), "norm": (width,),
            "lm_head": (len(KEPT), width), "midlayer.hidden_norm": (width,),
        }  # fmt: skip
        for number in range(self.num_layers):
            layer, read = f"layers.{number}." if number else "midlayer.", width if number else joined
            named |= {f"{layer}{norm}": (width,) for norm in ("input_layernorm", "post_attention_layernorm")}
            named |= {f"{layer}self_attn.q_proj": (24, read), f"{layer}self_attn.k_proj": (12, read)}
            named |= {f"{layer}self_attn.v_proj": (12, read), f"{layer}self_attn.o_proj": (width, 24)}
            named |= {f"{layer}mlp.gate_proj": (20, width), f"{layer}mlp.up_proj": (20, width)}
            named |= {f"{layer}mlp.down_proj": (width, 20)}
        if is_first:
            for name in ("norm", "lm_head", "midlayer.hidden_norm", "midlayer.input_layernorm"):
                del named[name]
        if "norms" in self.has:
            named |= {f"midlayer.self_attn.{name}_norm": (6,) for name in "qk"}
        if "input_norm" in self.has:
            named["input_norm"] = (3 * WIDTH,)
        if "fc_norm" in self.has:
            named |= {f"fc_norm.{number}": (WIDTH,) for number in range(3)}
        tensors = {f"{name}.weight": self._drawn(shape, draw) for name, shape in named.items()}
        biased = {"biases": "qkvo", "q biases": "qkv"}
        for name in [
            name for name in named for kind in self.has for each in biased.get(kind, "") if f".{each}_" in name
        ]:
            tensors[f"{name}.bias"] = torch.randn(named[name][0], generator=draw)
        if "bias" in self.has:
            tensors["fc.bias"] = torch.randn(width, generator=draw)
        if "embeddings" in self.has:
            tensors["embed_tokens.weight"] = torch.randn(VOCAB, width, generator=draw)
        if "mask" in self.has:
            tensors["mask_hidden"] = torch.randn(1, 3 * WIDTH, generator=draw)
        if not is_first:
            tensors["d2t"] = KEPT - torch.arange(len(KEPT))
            tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, KEPT, True)
        return tensors

    @staticmethod
    def _drawn(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
        numbers = torch.randn(shape, generator=draw)
        return 1 + numbers * 0.3 if len(shape) == 1 else numbers * 1.3 / shape[-1] ** 0.5

    def write(self, to: Path, settings: Mapping[str, Any] | None = None) -> Tensors:
        """Write the folder, with other settings on demand; return the tensors by the official names."""
        to.mkdir(exist_ok=True)
        tensors, named = self.tensors(), Tensors()
        for official, tensor in tensors.items():
            name = official.replace("midlayer.", self.first)
            for old, new in self.renamed.items():
                name = name.replace(old, new)
            named[name] = tensor.clone()
        if self.is_bin:
            torch.save(named, to / "pytorch_model.bin")
        else:
            save_file(named, to / "model.safetensors", metadata={"format": "pt"})
        for name, content in {
            "config.json": self.settings if settings is None else settings,
            **self.more_files,
        }.items():
            (to / name).write_text(json.dumps(content))
        return tensors


def _of(*, drop: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    settings = {**LAYER, "draft_vocab_size": len(KEPT), "architectures": ["LlamaForCausalLMEagle3"], **changes}
    return {name: value for name, value in settings.items() if name not in drop}


def _speculators(layer: Any = None, **changes: Any) -> dict[str, Any]:
    return {**SPECULATORS, "transformer_layer_config": {**LAYER, **(layer or {})}, **changes}


def _first(**changes: Any) -> dict[str, Any]:
    return {**LAYER, "architectures": ["LlamaForCausalLM"], **changes}


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}
IDS = "eagle_aux_hidden_state_layer_ids"
PEAGLE: dict[str, Any] = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}

READ: dict[str, Folder] = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": Folder(
        "eagle3", _of(architectures=["LlamaForCausalLM"], rope_scaling=LLAMA3), is_bin=True,
        reference={"scaled": LLAMA3},
    ),
    "EAGLE-3 without a base of the rotation": Folder("eagle3", _of(drop=("rope_theta",)), reference={"theta": 1e4}),
    "SpecForge, Qwen3": Folder("eagle3", _of(tie_word_embeddings=False, use_sliding_window=False, sliding_window=None)),
    "SpecForge, EAGLE 3.1": Folder(
        "eagle3", _of(fc_norm=True, norm_output=True), has=("fc_norm",), reference={"norms_output": True}
    ),
    "SpecForge, another width than the target's": Folder(
        "eagle3", _of(hidden_size=12, target_hidden_size=WIDTH), has=("embeddings",), width=12
    ),
    "SpecForge, gpt-oss, and NVIDIA: layers in eagle_config": Folder(
        "eagle3", _of(eagle_config={IDS: [0, 5, 10], "use_aux_hidden_state": True}), states=(1, 6, 11)
    ),
    "nebius/EAGLE3-gpt-oss-20b": Folder(
        "eagle3", _of(architectures=["LlamaForCausalLM"], truncated_vocab_size=len(KEPT),
                      rope_scaling={"rope_type": "yarn", **YARN}),
        reference={"scaled": {"rope_type": "yarn", **YARN}},
    ),
    "the older key of a rotation": Folder(
        "eagle3", _of(rope_scaling={"type": "yarn", **YARN}), reference={"scaled": {"rope_type": "yarn", **YARN}}
    ),
    "attention with biases": Folder("eagle3", _of(attention_bias=True), has=("biases",)),
    "AngelSlim, Qwen3": Folder("eagle3", _of(architectures=["Eagle3LlamaForCausalLM"], modal_type="LLM"),
                               first="model.layers.0."),
    "RedHatAI, speculators, Llama": Folder(
        "eagle3", _speculators(**{IDS: [2, 6, 9]}), "layers.0.", reference={"norms_residual": True}
    ),
    "RedHatAI/gpt-oss-20b-speculator.eagle3": Folder(
        "eagle3", _speculators(norm_before_fc=True, norm_before_residual=False, **{IDS: [1, 5, 12]}), "layers.0.",
        ("input_norm",), states=(1, 5, 12),
    ),
    "speculators, Qwen3's layer": Folder(
        "eagle3", _speculators({"model_type": "qwen3"}, norm_before_residual=False), "layers.0.", ("norms",)
    ),
    "speculators 0.7, a window": Folder(
        "eagle3",
        _speculators({"layer_types": ["sliding_attention"], "sliding_window": 6}, norm_before_residual=True,
                     norm_output=True),
        "layers.0.", reference={"window": 6, "norms_residual": True, "norms_output": True},
    ),
    "DeepSpec, eagle3_qwen3_ttt7": Folder(
        "eagle3", _of(architectures=["Qwen3Eagle3Model"], model_type="qwen3", target_layer_ids=[1, 3, 5, 7, 9],
                      num_target_layers=LAYERS),
        has=("norms",), states=(2, 4, 6, 8, 10),
    ),
    "speculators, P-EAGLE": Folder(
        "p_eagle", _speculators(PEAGLE, speculators_model_type="peagle", architectures=["PEagleDraftModel"],
                                mask_token_id=MASK, **{IDS: [2, 6, 9]}),
        "layers.0.", ("mask",), 3,
    ),
    "speculators, P-EAGLE, windows": Folder(
        "p_eagle", _speculators({"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3, "sliding_window": 6},
                                speculators_model_type="peagle", mask_token_id=MASK, norm_before_residual=True),
        "layers.0.", ("mask",), 3,
    ),
    "amazon/GPT-OSS-20B-P-EAGLE": Folder(
        "p_eagle", _of(num_hidden_layers=4, ptd_token_id=MASK, parallel_drafting=True, attention_bias=True),
        has=("mask", "biases"), num_layers=4,
    ),
    "amazon/Qwen3-Coder-30B-A3B-P-EAGLE": Folder(
        "p_eagle", _of(num_hidden_layers=4, pard_token=MASK), "layers.0.", ("mask",), 4,
    ),
    "SpecForge, PEagleDraftModel": Folder(
        "p_eagle", _of(architectures=["PEagleDraftModel"], num_hidden_layers=2, norm_before_residual=True),
        "layers.0.", ("mask", "embeddings"), 2,
        more_files={"peagle_config.json": {"mask_token_id": MASK, "num_depths": 5, "num_draft_layers": 2}},
    ),
    "yuhuili/EAGLE-LLaMA3-Instruct-8B": Folder("eagle", _first(bias=False), "layers.0.", is_bin=True),
    "yuhuili/EAGLE-Vicuna-7B-v1.3": Folder("eagle", _first(bias=True), "layers.0.", ("bias",), is_bin=True),
    "yuhuili/EAGLE-Qwen2-7B-Instruct": Folder(
        "eagle", _first(architectures=["Qwen2ForCausalLM"], model_type="qwen2"), "layers.0.", ("q biases", "bias")
    ),
    "vLLM's EAGLE": Folder(
        "eagle", {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": _first(), "eagle_fc_bias": True,
                  "truncated_vocab_size": VOCAB},
        "model.layers.0.", ("bias",),
    ),
    "speculators, EAGLE v1": Folder(
        "eagle", _speculators(speculators_model_type="eagle", architectures=["EagleSpeculator"], fusion_bias=True,
                              transformer_layer_architecture="LlamaDecoderLayer", layernorms=False,
                              draft_vocab_size=None),
        "transformer.", ("bias",), renamed={"fc.": "fusion_fc."},
    ),
}  # fmt: skip
