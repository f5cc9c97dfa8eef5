"""Rotary position embeddings as the head's own configuration says, in Llama's convention."""

import torch

from specdec.errors import ModelError
from specdec.heads.config import PairHeadConfig

_BY_LENGTH = "dynamic", "longrope"  # frequencies that depend on the length of the text


class Rotary:
    """Cosines and sines by position, computed in float32 whatever the head's dtype.

    Raises:
        ModelError: for a kind of rotation whose frequencies depend on the length of the text, or an unknown one.
    """

    def __init__(self, config: PairHeadConfig) -> None:
        kind = config.rope_parameters.get("rope_type", "default")
        if kind == "default":
            exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
            self._frequencies, self.scaling = config.rope_parameters["rope_theta"] ** -exponents, 1.0
        else:
            self._frequencies, self.scaling = _scaled(kind, config)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, (batch, 1, n, head_dim), of positions (batch, n)."""
        self._frequencies = self._frequencies.to(positions.device)
        angles = positions[:, None, :, None].float() * self._frequencies
        angles = torch.cat((angles, angles), -1)
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head of (batch, heads, n, head_dim)."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def _scaled(kind: str, config: PairHeadConfig) -> tuple[torch.Tensor, float]:
    """Return transformers' frequencies of a kind of scaled rotation, and the factor on cosines and sines."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind in _BY_LENGTH or kind not in ROPE_INIT_FUNCTIONS:
        raise ModelError(f"the head's rotary embedding is of type {kind!r}: use a head with default rotation")
    sizes = LlamaConfig(
        hidden_size=config.num_attention_heads * config.head_dim,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](sizes, torch.device("cpu"))
    return frequencies, scaling
