"""The sizes and variants of heads over pairs of features and tokens."""

from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PairHeadConfig(BaseModel, ABC):
    """The sizes of a ``PairHead``; fields have the names of published ``config.json`` files.

    Attributes:
        hidden_size: width H of the draft layer, which is the width of its token embeddings.
        vocab_size: size V of the target's vocabulary.
        draft_vocab_size: size Vd of the draft vocabulary; V for a full one.
        qkv_bias: queries, keys and values have a bias.
        o_bias: attention's output matrix has a bias.
        qk_norm: queries and keys have an RMS norm, each head of its own numbers (Qwen3).
        sliding_window: the number of pairs that a pair attends to, its own included; None for all before it.
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
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = Field(default=None, ge=1)

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
    """

    bias: bool = True

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
        return self.layer_ids or default_layers(num_layers)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers that EAGLE-3 reads of a target of ``num_layers``, numbered as ``hidden_states``."""
    return 2, num_layers // 2, num_layers - 3


def _mask_is_a_token(config: "PEagleConfig | BlockConfig") -> "PEagleConfig | BlockConfig":
    if config.mask_token_id >= config.vocab_size:
        raise ValueError(f"mask_token_id {config.mask_token_id} is beyond the vocabulary of {config.vocab_size}")
    return config


class PEagleConfig(Eagle3Config):
    """Configuration of a ``PEagleHead``.

    Attributes:
        num_layers: number of the head's layers.
        mask_token_id: the token whose embedding stands for a token that isn't drafted yet.
    """

    num_layers: int = Field(ge=1)
    mask_token_id: int = Field(ge=0)

    _check_mask = model_validator(mode="after")(_mask_is_a_token)


class BlockConfig(PairHeadConfig):
    """Configuration of a ``BlockHead``.

    Attributes:
        target_hidden_size: width of the target's hidden states.
        layer_ids: the target layers whose states are read, numbered as transformers' ``hidden_states``.
        num_layers: number of the head's layers.
        block_size: slots of a block, with the anchor's.
        mask_token_id: the token whose embedding the slots after the anchor's have.
        predicts_next: each slot predicts the token after its own. False if it predicts the token at its own position,
            which the anchor's slot doesn't.
        is_causal: by layer; a slot attends to no later slot of its block.
        windows: by layer, the number of positions that a slot attends to, its own included; None for all.
        has_anchors_window: the window of all slots is that of the one before the anchor.
        markov: how the token before changes a slot's logits (DSpark); None if it doesn't (DFlash).
        markov_rank: width of the tokens' vectors for that.
        embedding_scale: on the embeddings.
        logits_scale: on the logits, before they are capped.
        softcap: bound of the logits; None for none.
    """

    target_hidden_size: int = Field(ge=1)
    layer_ids: tuple[int, ...] = Field(min_length=1)
    num_layers: int = Field(ge=1)
    block_size: int = Field(ge=2)
    mask_token_id: int = Field(ge=0)
    predicts_next: bool
    is_causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    has_anchors_window: bool = False
    markov: Literal["vanilla", "gated", "rnn"] | None = None
    markov_rank: int = Field(default=0, ge=0)
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    softcap: float | None = Field(default=None, gt=0)

    _check_mask = model_validator(mode="after")(_mask_is_a_token)

    @property
    def states_size(self) -> int:
        return len(self.layer_ids) * self.target_hidden_size

    @property
    def limits(self) -> list[tuple[bool, int | None]]:
        """By layer: is it causal inside a block, and its window."""
        return [*zip(self.is_causal, self.windows, strict=True)]

    @property
    def num_drafted(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - (not self.predicts_next)

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        return self.layer_ids
