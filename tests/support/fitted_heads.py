"""Medusa's and EAGLE's heads for the built-in model, in folders that are removed at exit."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from specdec import demo
from tests.support.built_in_model import built_in
from tests.support.plain import decode_model

HIDDEN, VOCAB, HEADS = 384, 2048, 3
NUM_TOKENS, SEED = 16, 11
_RIDGE, _SHARPNESS = 0.1, 12.0


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Four prompts of ragged lengths; the second has more than one chunk."""
    _, tokenizer = built_in()
    ids = [tuple(tokenizer(prompt.text)["input_ids"]) for prompt in demo.prompts()[:4]]
    return ids[0], (ids[1] * 20)[:300], ids[2][:3], ids[3]


@cache
def plain_text(prompt: Sequence[int], seed: int | None) -> list[int]:
    """Plain decoding's new tokens after a prompt."""
    return decode_model(built_in()[0], prompt, NUM_TOKENS, seed)


@cache
def _states_and_tokens() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The last hidden states of the prompts' texts, greedy and sampled, with the tokens."""
    model, _ = built_in()
    found = []
    with torch.no_grad():
        for prompt in prompts():
            for seed in (None, SEED):
                tokens = torch.tensor([*prompt, *plain_text(prompt, seed)])
                states = model(tokens[None], output_hidden_states=True).hidden_states[-1][0]
                found.append((states, tokens))
    return found


def fitted_output(num_ahead: int) -> torch.Tensor:
    """An output matrix that predicts, from a hidden state, the token so many after its own: ridge regression."""
    pairs = [(states[:-num_ahead], tokens[num_ahead:]) for states, tokens in _states_and_tokens()]
    x, y = torch.cat([states for states, _ in pairs]), torch.cat([tokens for _, tokens in pairs])
    gram = x.T @ x
    scaled = gram + _RIDGE * gram.diagonal().mean() * torch.eye(HIDDEN)
    right = torch.zeros(HIDDEN, VOCAB).index_add_(1, y, x.T.contiguous())
    return torch.linalg.solve(scaled, right).T.contiguous() * _SHARPNESS


def _new_folder() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


@cache
def medusa_folder() -> Path:
    """Heads with blocks of zeros, and output matrices that know the prompts' texts."""
    tensors = {f"{head}.0.linear.weight": torch.zeros(HIDDEN, HIDDEN) for head in range(HEADS)}
    tensors |= {f"{head}.1.weight": fitted_output(2 + head) for head in range(HEADS)}
    folder = _new_folder()
    torch.save(tensors, folder / "medusa_lm_head.pt")
    return folder


def eagle_tensors(draw: torch.Generator, size: float) -> dict[str, torch.Tensor]:
    """A small layer of random weights after an ``fc`` that returns the hidden state of a pair and a little more."""
    shapes = {
        "self_attn.q_proj": (16, HIDDEN), "self_attn.k_proj": (8, HIDDEN), "self_attn.v_proj": (8, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 16), "mlp.gate_proj": (24, HIDDEN), "mlp.up_proj": (24, HIDDEN),
        "mlp.down_proj": (HIDDEN, 24),
    }  # fmt: skip
    tensors = {
        f"layers.0.{name}.weight": torch.randn(shape, generator=draw) * size / shape[1] ** 0.5
        for name, shape in shapes.items()
    }
    joined = torch.randn(HIDDEN, 2 * HIDDEN, generator=draw) * size / HIDDEN**0.5
    joined[:, HIDDEN:] += torch.eye(HIDDEN)
    return tensors | {
        "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "fc.weight": joined,
        "fc.bias": torch.randn(HIDDEN, generator=draw) * size,
    }


EAGLE_SETTINGS = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": VOCAB, "rope_theta": 500.0}


@cache
def eagle_folder(size: float = 0.01) -> Path:
    """A head that nearly returns the hidden state of a pair, with an output matrix that knows the prompts' texts."""
    folder = _new_folder()
    tensors = eagle_tensors(torch.Generator().manual_seed(0), size) | {"lm_head.weight": fitted_output(2)}
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(EAGLE_SETTINGS))
    return folder
