"""A model small enough to train heads for in a test, with the layers that their states are taken from."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, KEPT = 48, torch.arange(1, 48, 2)  # KEPT is the draft vocabulary


def target_of_heads() -> LlamaForCausalLM:
    """The model, the same at each call."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, num_hidden_layers=7, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval().requires_grad_(False)
