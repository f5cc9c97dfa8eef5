"""Random block drafters in the layouts of z-lab, DeepSpec and speculators."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.block_reference import Layout

WIDTH, VOCAB, RANK, THETA = 32, 96, 6, 500.0
KEPT = tuple(range(1, VOCAB, 2))  # a draft vocabulary
LAYER: dict[str, Any] = {
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": VOCAB,
    "rope_theta": THETA, "rms_norm_eps": 1e-6, "hidden_size": WIDTH, "intermediate_size": 24, "model_type": "qwen3",
    "hidden_act": "silu", "max_position_embeddings": 512,
}  # fmt: skip
TYPES = ["sliding_attention", "full_attention"]
Z_LAB: dict[str, Any] = {
    **LAYER, "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 4, "num_target_layers": 4, "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 1, 3]},
}  # fmt: skip
DEEP_SPEC: dict[str, Any] = {
    **LAYER, "architectures": ["Qwen3DSparkModel"], "block_size": 4, "mask_token_id": 7, "num_anchors": 512,
    "target_layer_ids": [0, 1, 3], "num_target_layers": 4, "layer_types": ["full_attention"] * 2,
    "enable_confidence_head": True, "confidence_head_with_markov": True, "markov_rank": RANK,
}  # fmt: skip
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "dflash", "architectures": ["DFlashDraftModel"], "block_size": 4, "mask_token_id": 7,
    "aux_hidden_state_layer_ids": [1, 2, 4], "draft_vocab_size": len(KEPT), "max_anchors": 256,
    "sample_from_anchor": False, "sliding_window_non_causal": False, "transformer_layer_config": LAYER,
    "speculators_config": {"algorithm": "dflash"}, "target_hidden_size": None,
}  # fmt: skip


def _z_lab(**changes: Any) -> dict[str, Any]:
    own = {**Z_LAB, **{name: value for name, value in changes.items() if name != "dflash_config"}}
    return {**own, "dflash_config": {**Z_LAB["dflash_config"], **changes.get("dflash_config", {})}}


def _deep_spec(**changes: Any) -> dict[str, Any]:
    return {**DEEP_SPEC, **changes}


def _speculators(layer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**SPECULATORS, **changes, "transformer_layer_config": {**LAYER, **(layer or {})}}


LAYOUTS: dict[str, Layout] = {
    "z-lab": Layout(_z_lab()),
    "z-lab, block size and layers by default": Layout(
        {**_z_lab(), "block_size": None, "dflash_config": {"mask_token_id": 7, "block_size": 4}}, layer_ids=(2, 2)
    ),
    "z-lab, sliding": Layout(
        _z_lab(layer_types=TYPES, sliding_window=5), causal=(True, False), windows=(5, None)
    ),
    "z-lab, sliding both ways": Layout(
        _z_lab(layer_types=TYPES, sliding_window=5, is_causal=False), windows=(5, None)
    ),
    "z-lab, a window of all layers": Layout(
        _z_lab(dflash_config={"use_swa": True, "swa_window_size": 3}), windows=(3, 3)
    ),
    "z-lab, causal": Layout(_z_lab(dflash_config={"causal": True}), causal=(True, True)),
    "z-lab, scaled": Layout(
        _z_lab(dflash_config={"output_multiplier": 0.5, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}),
        scale=0.5, softcap=3.0, embedding_scale=2.0,
    ),
    "DeepSpec, DFlash": Layout(_deep_spec(markov_rank=0, enable_confidence_head=False), True),
    "DeepSpec, vanilla": Layout(_deep_spec(markov_head_type="vanilla"), True, markov="vanilla", has_output=True),
    "DeepSpec, gated": Layout(_deep_spec(markov_head_type="gated"), True, markov="gated", has_output=True),
    "DeepSpec, rnn": Layout(_deep_spec(markov_head_type="rnn"), True, markov="rnn", has_output=True),
    "DeepSpec, embeddings as a state": Layout(
        _deep_spec(markov_head_type="vanilla", target_layer_ids=[-1, 1, 3]), True, layer_ids=(0, 2, 4),
        markov="vanilla", has_output=True,
    ),
    "speculators, dflash": Layout(_speculators(), draft_ids=KEPT, has_output=True, by_anchor=True),
    "speculators, dflash from its anchor": Layout(
        _speculators(sample_from_anchor=True), True, draft_ids=KEPT, has_output=True, by_anchor=True
    ),
    "speculators, dflash, sliding": Layout(
        _speculators({"layer_types": TYPES, "sliding_window": 5}), causal=(True, False), windows=(5, None),
        by_anchor=True, draft_ids=KEPT, has_output=True,
    ),
    "speculators, dflash, sliding both ways": Layout(
        _speculators({"layer_types": TYPES, "sliding_window": 5}, sliding_window_non_causal=True), windows=(5, None),
        by_anchor=True, draft_ids=KEPT, has_output=True,
    ),
    "speculators, dspark": Layout(
        _speculators(speculators_model_type="dspark", sample_from_anchor=True, markov_rank=RANK,
                     markov_head_type="vanilla"),
        True, markov="vanilla", draft_ids=KEPT, has_output=True, by_anchor=True,
    ),
    "speculators, dspark behind its anchor": Layout(
        _speculators(speculators_model_type="dspark", sample_from_anchor=False, markov_rank=RANK,
                     markov_head_type="gated"),
        markov="gated", draft_ids=KEPT, has_output=True, by_anchor=True,
    ),
}  # fmt: skip


def tensors_of(layout: Layout, seed: int = 2) -> dict[str, torch.Tensor]:
    """Random tensors by the published names."""
    draw, num_ids = torch.Generator().manual_seed(seed), len(layout.draft_ids or range(VOCAB))
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (16, WIDTH), "self_attn.k_proj": (8, WIDTH), "self_attn.v_proj": (8, WIDTH),
        "self_attn.o_proj": (WIDTH, 16), "mlp.gate_proj": (24, WIDTH), "mlp.up_proj": (24, WIDTH),
        "mlp.down_proj": (WIDTH, 24), "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
        "self_attn.q_norm": (8,), "self_attn.k_norm": (8,),
    }  # fmt: skip
    named = {f"layers.{number}.{name}": shape for number in range(2) for name, shape in layer.items()}
    named |= {"fc": (WIDTH, len(layout.layer_ids) * WIDTH), "hidden_norm": (WIDTH,), "norm": (WIDTH,)}
    named |= {"lm_head": (num_ids, WIDTH)} if layout.has_output else {}
    biased = [f"layers.{number}.self_attn.{name}_proj" for number in range(2) for name in "qkvo"]
    biased = biased if layout.settings.get("attention_bias") else []
    if layout.markov:
        named |= {"markov_head.markov_w1": (VOCAB, RANK), "markov_head.markov_w2": (num_ids, RANK)}
        more = {"gated": ("gate_proj", (RANK, WIDTH + RANK)), "rnn": ("joint_proj", (3 * RANK, 2 * RANK + WIDTH))}
        if layout.markov in more:
            name, shape = more[layout.markov]
            named[f"markov_head.{name}"] = shape
            biased.append(f"markov_head.{name}")
    if layout.settings.get("enable_confidence_head"):
        named["confidence_head.proj"] = 1, WIDTH + RANK
        biased.append("confidence_head.proj")

    def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        numbers = torch.randn(shape, generator=draw)
        if len(shape) == 1:
            return 1 + numbers * 0.2
        return numbers * (2.5 if "markov_w" in name else 1.0) / math.sqrt(shape[-1])

    tensors = {f"{name}.weight": drawn(name, shape) for name, shape in named.items()}
    tensors |= {f"{name}.bias": torch.randn(named[name][0], generator=draw) for name in biased}
    if layout.draft_ids:
        ids = torch.tensor(layout.draft_ids)
        kept = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": kept}
    return tensors


def write(folder: Path, layout: Layout, **changes: Any) -> dict[str, torch.Tensor]:
    """Write a folder; return its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(layout)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {name: value for name, value in {**layout.settings, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return tensors
