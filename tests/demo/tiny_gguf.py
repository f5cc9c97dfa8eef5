"""GGUF files of Llama and Qwen models with random weights, small enough to convert in a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, INNER, HEADS, GROUPS, LAYERS = 64, 96, 4, 2, 2
# Families whose files have the width per head; of others it is WIDTH // HEADS.
HEAD = {"gemma2": 16, "gemma3": 16, "qwen3": 128}  # transformers supposes 128 for Qwen3
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdeĠ", "ab", "abc"]


def weights(architecture: str = "llama") -> dict[str, np.ndarray]:
    """The tensors by GGUF's names, of transformers' shapes."""
    rng, head = np.random.default_rng(0), HEAD.get(architecture, WIDTH // HEADS)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        shapes[f"blk.{layer}.attn_q"] = (HEADS * head, WIDTH)
        shapes[f"blk.{layer}.attn_output"] = (WIDTH, HEADS * head)
        shapes |= {f"blk.{layer}.{name}": (GROUPS * head, WIDTH) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{layer}.{name}": (INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down"] = (WIDTH, INNER)
    biases = dict[str, tuple[int, ...]]()
    for layer in range(LAYERS):
        if architecture == "qwen2":
            biases |= {f"blk.{layer}.attn_q": (WIDTH,)}
            biases |= {f"blk.{layer}.{name}": (GROUPS * head,) for name in ("attn_k", "attn_v")}
        elif architecture == "qwen3":
            shapes |= {f"blk.{layer}.{name}": (head,) for name in ("attn_q_norm", "attn_k_norm")}
    named = {f"{name}.weight": shape for name, shape in shapes.items()}
    named |= {f"{name}.bias": shape for name, shape in biases.items()}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in named.items()}


def write(
    path: Path, architecture: str = "llama", more: Callable[[Any], object] | None = None
) -> dict[str, np.ndarray]:
    """Write the file, its matrices in blocks of four bits, and return what its tensors are worth.

    ``more`` may add keys and tensors.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import dequantize, quantize

    writer, worth = GGUFWriter(path, architecture), dict[str, np.ndarray]()
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(HEAD.get(architecture, WIDTH // HEADS))
    if architecture in HEAD:
        writer.add_key_length(HEAD.get(architecture, WIDTH // HEADS))
        writer.add_value_length(HEAD.get(architecture, WIDTH // HEADS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    if more is not None:
        more(writer)
    for name, tensor in weights(architecture).items():
        kind = GGMLQuantizationType.Q4_1 if tensor.ndim == 2 else GGMLQuantizationType.F32
        raw = quantize(tensor, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
        worth[name] = dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return worth
