"""Settings of consistency training."""

from typing import ClassVar

from pydantic import Field

from specdec.training.settings import OwnTextSettings


class ConsistencySettings(OwnTextSettings):
    """Settings of tuning a model for Jacobi decoding.

    All answers are greedy, as fixed points of Jacobi iteration are greedy text.

    Attributes:
        block_size: tokens of a block, n; also the guesses per step that the model is evaluated with.
        learning_rate: of AdamW, after the warm-up and before it falls linearly to zero.
        ar_weight: weight of the autoregressive loss, ω; 10 in the authors' code. With small batches, noise of this loss
            then hides the consistency loss.
        warm_up: updates until the learning rate is reached.
        flat_share: share of the training at the full rate, the warm-up included.
        betas: of AdamW.
        clip: largest norm of the gradient.
        rows_per_batch: packed rows per update of the weights; None for 2 on a CPU and 16 on a GPU.
        max_loss_increase: the loss on held-out text by which a model that is kept may exceed the original's, in nats
            per token.
        evaluated_texts: held-out texts that are decoded for an evaluation.
        evaluated_tokens: new tokens of each.
        minutes_per_evaluation: time between evaluations, of which there are at least six.
    """

    command: ClassVar[str] = "specdec train consistency"

    text_share: float = Field(default=0.3, gt=0, lt=1)
    greedy_share: float | None = Field(default=1.0, ge=0, le=1)
    row_length: int = Field(default=256, ge=16)
    block_size: int = Field(default=8, ge=2)
    learning_rate: float = Field(default=1e-4, gt=0)
    ar_weight: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    warm_up: int = Field(default=20, ge=1)
    flat_share: float = Field(default=0.5, ge=0, le=1)
    betas: tuple[float, float] = (0.9, 0.97)
    clip: float = Field(default=1.0, gt=0)
    rows_per_batch: int | None = Field(default=None, ge=1)
    max_loss_increase: float = Field(default=0.1, ge=0)
    evaluated_texts: int = Field(default=16, ge=1)
    evaluated_tokens: int = Field(default=64, ge=1)
    minutes_per_evaluation: float = Field(default=5.0, gt=0)
