"""The sizes and variants of heads over pairs of features and tokens."""

from abc import ABC, abstractmethod
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PairHeadConfig(BaseModel, ABC):
    """The sizes of a ``PairHead``; fields have the names of published ``config.json`` files.

    Attributes:
        hidden_size: width H of the draft layer, which is the width of its token embeddings.
        vocab_size: size V of the target's vocabulary.
        draft_vocab_size: size Vd of the draft vocabulary; V for a full one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    rope_parameters: dict[str, Any] = Field(default={"rope_type": "default", "rope_theta": 10000.0})
    max_position_embeddings: int = Field(default=2048, ge=1)

    @property
    @abstractmethod
    def states_size(self) -> int:
        """Width of the target's states that make a feature."""

    @abstractmethod
    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the target layers whose states the head reads, for a target of ``num_layers`` layers."""


class EagleConfig(PairHeadConfig):
    """Configuration of an ``EagleHead``, whose vocabulary and width are the target's.

    Attributes:
        bias: ``fc`` has a bias.
        qkv_bias: queries, keys and values have a bias.
    """

    bias: bool = True
    qkv_bias: bool = False

    @property
    def states_size(self) -> int:
        return self.hidden_size

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        return (num_layers,)  # the state after the final norm


class Eagle3Config(PairHeadConfig):
    """Configuration of an ``Eagle3Head``.

    Attributes:
        target_hidden_size: width of the target's hidden states.
        num_states: number of target layers whose states are concatenated.
        layer_ids: the target layers, numbered as transformers' ``hidden_states``; None for (2, n // 2, n - 3).
        norm_before_residual: the residual is the feature after its norm.
        norm_before_fc: the concatenated target states have an RMS norm before ``fc``.
        fc_norm: each target state has an RMS norm of its own before ``fc``.
        norm_output: the recurrent feature is the layer's output after the final norm (EAGLE 3.1).
    """

    target_hidden_size: int = Field(ge=1)
    num_states: int = Field(default=3, ge=1)
    layer_ids: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def states_size(self) -> int:
        return self.num_states * self.target_hidden_size

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        return self.layer_ids or (2, num_layers // 2, num_layers - 3)


class PEagleConfig(Eagle3Config):
    """Configuration of a ``PEagleHead``.

    Attributes:
        num_layers: number of the head's layers.
        mask_token_id: the token whose embedding stands for a token that isn't drafted yet.
    """

    num_layers: int = Field(ge=1)
    mask_token_id: int = Field(ge=0)

    @model_validator(mode="after")
    def _check_mask(self) -> Self:
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(f"mask_token_id {self.mask_token_id} is beyond the vocabulary of {self.vocab_size}")
        return self
