"""Small random models of every family, with logits spread widely enough that a wrong mask can't hide."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB = 96
WINDOW = 8
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": None,
}
MHA = {**SMALL, "num_key_value_heads": 4}
GPT = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 0,
    "eos_token_id": None,
}
MIXED = ["sliding_attention", "full_attention"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
NEMOTRON = {
    "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16,
    "n_groups": 2,
}  # fmt: skip

# name -> (configuration class, its arguments)
TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "mistral": ("MistralConfig", {**SMALL, "sliding_window": None}),
    "mistral-window": ("MistralConfig", {**SMALL, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", SMALL),
    "qwen2-window": (
        "Qwen2Config",
        {**SMALL, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**SMALL, "head_dim": 8, "sliding_window": WINDOW, "layer_types": MIXED}),
    "gemma3": ("Gemma3TextConfig", {**SMALL, "head_dim": 8, "sliding_window": WINDOW, "layer_types": MIXED}),
    "phi3": ("Phi3Config", {**SMALL, "sliding_window": None}),
    "gpt2": ("GPT2Config", GPT),
    "gptj": ("GPTJConfig", {**GPT, "rotary_dim": 4}),
    "codegen": ("CodeGenConfig", {**GPT, "rotary_dim": 4}),
    "gpt_neox": ("GPTNeoXConfig", MHA),
    "opt": ("OPTConfig", {**MHA, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "starcoder2": ("Starcoder2Config", {**SMALL, "sliding_window": None}),
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", {**SMALL, **EXPERTS, "head_dim": 8}),
    "gpt_oss": (
        "GptOssConfig",
        {**SMALL, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW,
         "layer_types": MIXED},
    ),
    "deepseek_v3": ("DeepseekV3Config", {**MHA, **LATENT}),
    "olmo2": ("Olmo2Config", SMALL),
    "cohere2": ("Cohere2Config", {**SMALL, "sliding_window": WINDOW, "layer_types": MIXED}),
    "llama4": (
        "Llama4TextConfig",
        {**SMALL, "head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": WINDOW,
         "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {**SMALL, **NEMOTRON, "layers_block_type": ["full_attention", "moe", "full_attention", "mlp"]},
    ),
}  # fmt: skip

MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
KIMI = {
    "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "num_local_experts": 4, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
CONVOLUTION = {"layer_types": ["conv", "full_attention"]}
LIMIT = 0.5  # of time steps: large, so that a pass that is wrongly limited shows
LONG_STEPS = {"time_step_min": 0.5, "time_step_max": 2.0}  # so that states matter to the logits
TWO_LAYERS = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": None}

# name -> (configuration class, its arguments): layers with states of the whole text, decoded with chains
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2Config", {**SMALL, **CONVOLUTION}),
    "lfm2_moe": ("Lfm2MoeConfig", {**SMALL, **EXPERTS, **CONVOLUTION, "num_dense_layers": 1}),
    "lfm3": (
        "Lfm3Config",
        {**SMALL, "num_hidden_layers": 3, "layer_types": ["conv", *MIXED], "sliding_window": WINDOW},
    ),
    "qwen3_next": ("Qwen3NextConfig", {**SMALL, **EXPERTS, **DELTA, "head_dim": 8, "linear_num_key_heads": 2}),
    "qwen3_5": ("Qwen3_5TextConfig", {**SMALL, **DELTA, "head_dim": 8, "linear_num_key_heads": 2}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**SMALL, **EXPERTS, **DELTA, "head_dim": 8}),
    "olmo_hybrid": ("OlmoHybridConfig", {**SMALL, **DELTA}),
    "bamba": ("BambaConfig", {**SMALL, **MAMBA2, "attn_layer_indices": [1]}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {**SMALL, **MAMBA2, "layer_types": DELTA["layer_types"], "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon_h1": ("FalconH1Config", {**SMALL, **MAMBA2, "head_dim": 8, "mamba_d_ssm": 64}),
    "mamba2": (
        "Mamba2Config",
        {**TWO_LAYERS, "state_size": 16, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    ),
    "mamba": ("MambaConfig", {**TWO_LAYERS, **LONG_STEPS, "state_size": 8}),
    "nemotron_h": (
        "NemotronHConfig",
        {**SMALL, **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
         "time_step_min": LIMIT},
    ),
    "minimax": ("MiniMaxConfig", {**SMALL, "head_dim": 8, "layer_types": DELTA["layer_types"]}),
    "kimi_linear": (
        "KimiLinearConfig",
        {**MHA, **KIMI, "layer_types": DELTA["layer_types"], "linear_head_dim": 8, "linear_num_heads": 4},
    ),
    "zamba2": (
        "Zamba2Config",
        {**SMALL, "layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 8, "mamba_ngroups": 1,
         "n_mamba_heads": 4, "num_mem_blocks": 1, "chunk_size": 8, "time_step_min": LIMIT},
    ),
    "zaya": ("ZayaConfig", SMALL),
}  # fmt: skip

# More of them, with layers as above: compared by ``python -m benchmarks hybrids`` alone.
MORE_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "zamba": (
        "ZambaConfig",
        {**SMALL, "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_d_state": 8,
         "n_mamba_heads": 2},
    ),
    "falcon_mamba": ("FalconMambaConfig", {**TWO_LAYERS, **LONG_STEPS, "state_size": 8}),
    "jamba": (
        "JambaConfig",
        {**SMALL, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8},
    ),
    "inkling": ("InklingTextConfig", {**MHA, "num_hidden_layers": 2}),
    "bailing_hybrid": ("BailingHybridConfig", {**MHA, **KIMI, "head_dim": 8, "layer_types": DELTA["layer_types"]}),
    "lara_mini": ("LaraMiniConfig", {**SMALL, "layer_types": DELTA["layer_types"]}),
}  # fmt: skip

RECURRENT_GEMMA: tuple[str, dict[str, Any]] = (
    "RecurrentGemmaConfig",
    {**SMALL, "num_hidden_layers": 3, "attention_window_size": WINDOW, "lru_width": 32},
)

# name -> (configuration class, its arguments, what the refusal says)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek_v32": (
        "DeepseekV32Config",
        {**MHA, **LATENT, "index_topk": 4, "index_head_dim": 16, "index_n_heads": 2},
        "indexed_attention .sparse attention: an indexer selects each query's keys",
    ),
}

# name -> (configuration class, its arguments): no trees, but chains are exact
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "gpt_neo": (
        "GPTNeoConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64,
         "window_size": WINDOW, "max_position_embeddings": 256, "attention_types": [[["global", "local"], 1]]},
    ),
}  # fmt: skip


# name -> (configuration class, its arguments): models whose own code computes attention
FIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon": (
        "FalconConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": False},
    ),
    "xglm": (
        "XGLMConfig",
        {"vocab_size": VOCAB, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4,
         "max_position_embeddings": 256},
    ),
    "big_bird": ("BigBirdConfig", {**MHA, "is_decoder": True}),
}  # fmt: skip


def make(config_class: str, arguments: dict[str, Any], spread_over: int = 24) -> PreTrainedModel:
    """A random model whose logits have a standard deviation of at least 1, so that errors show."""
    torch.manual_seed(7)
    config = getattr(transformers, config_class)(**arguments)
    return spread(transformers.AutoModelForCausalLM.from_config(config), spread_over)


def spread(model: PreTrainedModel, length: int = 24) -> PreTrainedModel:
    """The same model with matrices that tell its tokens apart, and logits as ``make`` says over so long a text."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=1.0 / parameter.shape[-1] ** 0.5)
    scale_to_unit_spread(model, length)
    return model


def scale_to_unit_spread(model: PreTrainedModel, length: int = 24) -> None:
    """Stretch the output projection until the logits spread by 1.5."""
    ids = torch.randint(0, VOCAB, (2, length), generator=torch.Generator().manual_seed(0))
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for _ in range(6):
            found = float(model(ids).logits.std())
            if found >= 1.2:
                return
            head *= 1.5 / found


def plain_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """The model's own logits for each position of a text, without any cache."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def deep(name: str, layers: int, has_spikes: bool = False) -> PreTrainedModel:
    """A family's model with so many layers, and, on demand, activations as large as real models have in some channels.

    A quarter of the tokens have two embedding channels that are 300 times as large.
    """
    config_class, arguments = {**TREES, **CHAINS}[name]
    scaled = {**arguments, "tie_word_embeddings": False}  # large embeddings are not to be large logits
    for key in ("num_hidden_layers", "n_layer", "n_layers"):
        if key in arguments:
            scaled[key] = layers
    for key in ("layer_types", "layers_block_type"):
        if key in arguments:
            scaled[key] = arguments[key] * (layers // 2)
    if "max_window_layers" in arguments:
        scaled["max_window_layers"] = layers // 2
    if "layers_block_type" in arguments:  # they are counted by themselves
        del scaled["num_hidden_layers"]
    model = make(config_class, scaled)
    if has_spikes:
        embeddings = model.get_input_embeddings().weight
        chosen = torch.randperm(len(embeddings), generator=torch.Generator().manual_seed(1))[: len(embeddings) // 4]
        with torch.no_grad():
            embeddings[chosen[:, None], torch.tensor([3, 17])] *= 300.0
    return model
