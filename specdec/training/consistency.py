"""Consistency training (Consistency LLM: Kou et al. 2024, arXiv 2403.00835): Jacobi trajectories and the two losses.

A text that the model wrote greedily is cut into blocks of n tokens. Jacobi iteration begins a block with guesses y⁽⁰⁾
and computes all of its tokens at once, each from those before it (section 3.1), x being all text before the block:

    y_i⁽ʲ⁺¹⁾ = argmax p(· | y⁽ʲ⁾_<i, x)          until the fixed point y*, which is the greedy text

Training makes the model predict the fixed point from any state y of the trajectory (section 3.2):

    L_GC = Σ_i D( q_θ⁻(· | y*_<i, x) ‖ q_θ(· | y_<i, x) )        global consistency; no gradient through θ⁻
    L_AR = −Σ_i log q_θ(l_i | l_<i)                              on the whole text l
    L    = L_GC + ω L_AR

The paper runs the model once for each block and loss. Here one pass has the text and a state of every block:

    x x x │ y*y*y* │ y*y*y* ‖ y y y │ y y y      a block's state sees the text before its block, and itself

so the text's logits are both the teacher's and those of L_AR. Both losses are means over tokens, L_GC over those with a
wrong token before them in their block, as in the authors' code: the others' distributions are equal. States are of the
model as it is now, whereas the paper collects them once, before training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch.nn.functional import cross_entropy, kl_div
from transformers import Cache, DynamicCache

from specdec.models.architecture import cache_argument
from specdec.training.packing import PackedRows


@dataclass(frozen=True)
class Blocks:
    """Packed rows whose answers are cut into blocks; the last one of an answer may be shorter.

    Attributes:
        rows: on the model's device.
        starts: (rows, length) the column in which a token's block begins; -1 for context and padding.
    """

    rows: PackedRows
    starts: torch.Tensor

    @classmethod
    def of(cls, rows: PackedRows, block_size: int) -> Self:
        """Cut the rows' answers into blocks of ``block_size`` tokens."""
        column = torch.arange(rows.tokens.shape[1], device=rows.tokens.device).expand_as(rows.tokens)
        begins = rows.is_answer & ~(rows.is_answer.roll(1, 1) & (rows.positions > 0))
        answers = torch.where(begins, column, -1).cummax(1).values
        starts = column - (column - answers) % block_size
        return cls(rows, torch.where(rows.is_answer, starts, -1))

    @cached_property
    def column(self) -> torch.Tensor:
        return torch.arange(self.starts.shape[1], device=self.starts.device)

    @property
    def inside(self) -> torch.Tensor:
        """(rows, length) True for tokens of a block."""
        return self.starts >= 0

    @cached_property
    def visible(self) -> torch.Tensor:
        """(rows, length, 2 * length) True where a state's token sees the text, and then where it sees the states."""
        documents, starts = self.rows.documents, self.starts[:, :, None]
        text = (documents[:, :, None] == documents[:, None, :]) & (self.column < starts)
        states = (starts == self.starts[:, None, :]) & (self.column <= self.column[:, None])
        return torch.cat((text, states), -1)

    def follows_error(self, state: torch.Tensor) -> torch.Tensor:
        """Return (rows, length), True for tokens with a wrong one before them in their block."""
        wrong = (state != self.rows.tokens) & self.inside
        before = wrong.cumsum(1) - wrong.long()
        return self.inside & (before > before.gather(1, self.starts.clamp_min(0)))


def initial_guess(blocks: Blocks, ends: torch.Tensor, draw: np.random.Generator) -> torch.Tensor:
    """Return y⁽⁰⁾ of all blocks, (rows, length): random tokens of the text before each block, as ``jacobi`` begins.

    Args:
        blocks: the blocks.
        ends: tokens that end a text, which the last token before the block replaces.
        draw: the source of randomness.
    """
    rows, starts = blocks.rows, blocks.starts.clamp_min(1)
    documents = blocks.column - rows.positions
    shares = torch.from_numpy(draw.random(tuple(starts.shape))).to(starts.device)
    guess = rows.tokens.gather(1, (documents + (shares * (starts - documents)).long()).clamp_min(0))
    return torch.where(torch.isin(guess, ends), rows.tokens.gather(1, starts - 1), guess)


@torch.no_grad()
def trajectory(model: Any, blocks: Blocks, guess: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield y⁽⁰⁾, y⁽¹⁾, … of all blocks, (rows, length) each, without end; tokens outside of blocks are the text's.

    Args:
        model: a causal language model.
        blocks: the blocks.
        guess: (rows, length) y⁽⁰⁾.
    """
    rows, length = blocks.rows, blocks.starts.shape[1]
    state = torch.where(blocks.inside, guess, rows.tokens)
    yield state
    cache = DynamicCache()
    first = logits_of(model, rows.tokens, rows.positions, rows.visible(), cache).argmax(-1).roll(1, 1)
    while True:
        predicted = logits_of(model, state, rows.positions, blocks.visible, cache).argmax(-1).roll(1, 1)
        cache.crop(-length)
        predicted = torch.where(blocks.column == blocks.starts, first, predicted)
        state = torch.where(blocks.inside, predicted, rows.tokens)
        yield state


def losses(model: Any, blocks: Blocks, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return L_GC and L_AR, per token, in float32.

    Args:
        model: a causal language model.
        blocks: the blocks, whose text has the fixed points.
        state: (rows, length), of a trajectory.
    """
    rows, length = blocks.rows, blocks.starts.shape[1]
    tokens, positions = torch.cat((rows.tokens, state), 1), rows.positions.repeat(1, 2)
    of_text = torch.nn.functional.pad(rows.visible(), (0, length))
    logits = logits_of(model, tokens, positions, torch.cat((of_text, blocks.visible), 1))
    text, states = logits[:, :length].flatten(0, 1), logits[:, length:].flatten(0, 1)
    chosen = blocks.follows_error(state).flatten().nonzero()[:, 0]
    answers = blocks.inside.flatten().nonzero()[:, 0]
    autoregressive = cross_entropy(text[answers - 1].float(), rows.tokens.flatten()[answers])
    if not len(chosen):
        return torch.zeros_like(autoregressive), autoregressive
    teacher = text[chosen - 1].detach().float().log_softmax(-1)
    student = states[chosen - 1].float().log_softmax(-1)
    return kl_div(student, teacher, reduction="batchmean", log_target=True), autoregressive


def logits_of(
    model: Any, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: Cache | None = None
) -> torch.Tensor:
    """Run the model; return the logits, (rows, length, vocab).

    Args:
        model: a causal language model.
        tokens: (rows, length).
        positions: (rows, length).
        visible: (rows, length, cached + length), True where a token sees another.
        cache: keys and values to see as well, to which those of the tokens are added.
    """
    device = visible.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]
    cached = {cache_argument(model): cache, "use_cache": True} if cache is not None else {"use_cache": False}
    logits: torch.Tensor = model(input_ids=tokens, attention_mask=mask, position_ids=positions, **cached).logits
    return logits
