"""Folders of P-EAGLE heads, written in ``speculators``' layout; ``eagle3_folder.py`` reads them."""

from pathlib import Path
from typing import Any

from specdec.heads.files import write_folder
from specdec.heads.p_eagle import PEagleHead


def write_p_eagle_head(head: PEagleHead, folder: Path, num_layers: int, target: str) -> None:
    """Write a head in bfloat16, in ``speculators``' layout.

    Args:
        head: the head; its states aren't scaled.
        folder: created if it doesn't exist.
        num_layers: number of the target's layers.
        target: the target's name.
    """
    state = head.state_dict()
    if head.owns_embeddings:
        state["embed_tokens.weight"] = head.embeddings
    tensors = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in state.items()}
    write_folder(folder, tensors, _config(head, num_layers, target))


def _config(head: PEagleHead, num_layers: int, target: str) -> dict[str, Any]:
    config = head.config
    sizes = config.model_dump(
        include={
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "rms_norm_eps", "rope_parameters", "max_position_embeddings", "vocab_size",
        }
    )  # fmt: skip
    layer = {
        "model_type": "llama",
        "num_hidden_layers": config.num_layers,
        **sizes,
        "rope_theta": config.rope_parameters["rope_theta"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    method = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    variants = "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"
    return {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "transformer_layer_config": layer,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "mask_token_id": config.mask_token_id,
        "eagle_aux_hidden_state_layer_ids": list(config.target_layers(num_layers)),
        **{name: getattr(config, name) for name in variants},
        "speculators_config": {
            "algorithm": "peagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "torch_dtype": "bfloat16",
    }
