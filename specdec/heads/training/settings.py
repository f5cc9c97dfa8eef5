"""Settings of the text that the target writes, and of the training on it."""

from pydantic import BaseModel, ConfigDict, Field

from specdec.heads.training.script import Script

_ALIGNMENT = 64  # slots


class RolloutSettings(BaseModel):
    """Settings of the target's own text.

    Attributes:
        num_rows: documents side by side.
        opening_tokens: least and most tokens of free text before the answer.
        answer_tokens: most tokens of an answer.
        opening_temperature: of the free text before the answer.
        answer_temperature: of answers that aren't greedy.
        greedy_share: share of answers that are greedy.
        min_p: tokens below this share of the top probability are left out where text is sampled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_rows: int = Field(default=128, ge=1)
    opening_tokens: tuple[int, int] = (64, 64)
    answer_tokens: int = Field(default=256, ge=1)
    opening_temperature: float = Field(default=1.0, ge=0)
    answer_temperature: float = Field(default=0.7, ge=0)
    greedy_share: float = Field(default=0.8, ge=0, le=1)
    min_p: float = Field(default=0.02, gt=0, le=1)

    def num_slots(self, script: Script) -> int:
        """Return the number of cache slots per row."""
        longest = max(map(len, script.openings)) + self.opening_tokens[1] + self.answer_tokens
        return -(-(len(script.prefix) + len(script.bridge) + longest + 1) // _ALIGNMENT) * _ALIGNMENT


class TrainingSettings(BaseModel):
    """Settings of a head's training.

    Attributes:
        step_weights: weight of each unrolled step's loss.
        early_steps: unrolled steps before the rates begin to fall.
        rows_per_batch: packed rows per update of the weights.
        rows_per_target_pass: packed rows whose target states are computed at once, and held meanwhile.
        rate: factor on all learning rates.
        warm_up: updates until the rates are reached.
        flat_share: share of the updates at full rates, after which these fall linearly to zero.
        betas: of AdamW.
        clip: largest norm of the gradient.
        evaluations: how often the head is evaluated, the last time at the end.
        evaluated_from: share of the run after which evaluations are spread evenly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_weights: tuple[float, ...] = (1.0, 0.8, 0.64)
    early_steps: int = Field(default=2, ge=1)
    rows_per_batch: int = Field(default=2, ge=1)
    rows_per_target_pass: int = Field(default=8, ge=1)
    rate: float = Field(default=1.0, gt=0)
    warm_up: int = Field(default=30, ge=1)
    flat_share: float = Field(default=0.4, ge=0, le=1)
    betas: tuple[float, float] = (0.9, 0.97)
    clip: float = Field(default=5.0, gt=0)
    evaluations: int = Field(default=4, ge=1)
    evaluated_from: float = Field(default=0.5, ge=0, lt=1)

    def evaluated_at(self) -> list[float]:
        """Return the shares of the run after which the head is evaluated."""
        count, first = self.evaluations, self.evaluated_from
        return [first + (1 - first) * (index + 1) / count for index in range(count)]


class HeadSettings(BaseModel):
    """Settings of making a head from nothing but its target: the target writes text, and the head is trained on it.

    Attributes:
        minutes: time for everything.
        reserved_seconds: of that, left for what the caller does with the head.
        text_share: share of the time in which the target writes text; 1 trains no head.
        answer_tokens: most tokens of an answer.
        num_rows: documents written side by side, if memory allows; None for 128 on a CPU and 4,096 on a GPU.
        greedy_share: share of answers that are greedy; None for 0.8, and 0.5 of the answers to given prompts.
        row_length: tokens of a packed row.
        held_out_every: one document in this number is kept for evaluations.
        draft_vocab_size: size of the draft vocabulary, at most the target's.
        seed: of all randomness.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: float = Field(default=60.0, gt=0)
    reserved_seconds: float = Field(default=0.0, ge=0)
    text_share: float = Field(default=0.4, gt=0, le=1)
    answer_tokens: int = Field(default=256, ge=1)
    num_rows: int | None = Field(default=None, ge=1)
    greedy_share: float | None = Field(default=None, ge=0, le=1)
    row_length: int = Field(default=512, ge=16)
    held_out_every: int = Field(default=25, ge=2)
    draft_vocab_size: int = Field(default=8192, ge=1)
    seed: int = Field(default=0, ge=0)

    @property
    def text_seconds(self) -> float:
        """The time for text."""
        return max(0.0, 60 * self.minutes - self.reserved_seconds) * self.text_share

    @property
    def has_training(self) -> bool:
        """False if the whole time is for text."""
        return self.text_share < 1
