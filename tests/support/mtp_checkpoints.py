"""Small random checkpoints with a multi-token-prediction module, in the layout of each family."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.families import DELTA, EXPERTS, LATENT, MHA, SMALL, make

NUM_LAYERS = 2
_HYBRID = {**SMALL, **DELTA, "layer_types": [*DELTA["layer_types"], "full_attention"], "linear_num_key_heads": 2}
_GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
# family -> (configuration class, its arguments, layout)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mimo": ("Qwen2Config", {**SMALL, "rope_theta": 500.0}, "mimo"),
    "qwen3_5": ("Qwen3_5TextConfig", {**_HYBRID, "head_dim": 16}, "qwen"),
    "qwen3_next": ("Qwen3NextConfig", {**_HYBRID, **EXPERTS, "head_dim": 16}, "qwen"),
    "glm4_moe": ("Glm4MoeConfig", {**SMALL, **_GLM, "head_dim": 8, "first_k_dense_replace": 1}, "deepseek"),
    "deepseek_v3": ("DeepseekV3Config", {**MHA, **LATENT}, "deepseek"),
}
# layout -> (prefix of the layer, names of: norm of the embedding, norm of the hidden state, projection, last norm)
LAYOUTS = {
    "qwen": ("mtp.layers.0.", "mtp.pre_fc_norm_embedding mtp.pre_fc_norm_hidden mtp.fc mtp.norm"),
    "deepseek": (
        f"model.layers.{NUM_LAYERS}.",
        " ".join(f"model.layers.{NUM_LAYERS}.{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")),
    ),
    "mimo": (
        "model.mtp_layers.0.",
        " ".join(
            f"model.mtp_layers.0.{name}"
            for name in ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        ),
    ),
}


def write_checkpoint(family: str, folder: Path) -> Any:
    """Write a checkpoint; returns the model with one more layer, the module's, whose other weights are the same.

    Layers add little to the embeddings, and the module passes these on, so that some of its drafts are accepted.
    """
    config_class, arguments, layout = FAMILIES[family]
    longer = make(config_class, {**arguments, "num_hidden_layers": NUM_LAYERS + 1})
    draw = torch.Generator().manual_seed(3)
    for name, parameter in longer.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += torch.randn(parameter.shape, generator=draw) * 0.2
        elif any(part in name for part in ("o_proj", "out_proj", "down_proj")):
            parameter.data *= 0.4
    longer.save_pretrained(folder)
    (file,) = folder.glob("*.safetensors")
    prefix, names = LAYOUTS[layout]
    tensors = {name.replace(f"model.layers.{NUM_LAYERS}.", prefix): tensor for name, tensor in load_file(file).items()}
    hidden = arguments["hidden_size"]
    for name in names.split():
        shape = (hidden, 2 * hidden) if name.endswith(("fc", "eh_proj", "input_proj")) else (hidden,)
        tensors[f"{name}.weight"] = torch.randn(shape, generator=draw) * (0.2 if len(shape) == 1 else 0.05)
        if len(shape) > 1:
            tensors[f"{name}.weight"][:, hidden:] += torch.eye(hidden) * 0.5
            tensors[f"{name}.weight"][:, :hidden] += torch.eye(hidden) * 0.5
        elif layout != "qwen":  # whose norms multiply by 1 + weight
            tensors[f"{name}.weight"] += 1
    if layout == "deepseek":  # copies that aren't read
        tensors[f"{prefix}embed_tokens.weight"] = torch.zeros(len(longer.lm_head.weight), hidden)
        tensors[f"{prefix}shared_head.head.weight"] = torch.zeros(len(longer.lm_head.weight), hidden)
    save_file(tensors, file, metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings["num_hidden_layers"] = NUM_LAYERS
    if settings.get("layer_types"):
        settings["layer_types"] = settings["layer_types"][:NUM_LAYERS]
    (folder / "config.json").write_text(json.dumps(settings))
    return longer


def give_own_code(folder: Path) -> None:
    """Give a checkpoint of MiMo the classes that published ones bring, and their configuration."""
    code = Path(__file__).parent / "own_code/modeling_mimo.py"
    shutil.copy(code, folder)
    settings = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "modeling_mimo.MiMoConfig", "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
    named = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(settings | named | {"num_nextn_predict_layers": 1}))


def load(folder: Path) -> Any:
    """The target, as its owner loads it: without the module."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True)
    return model.eval()
