"""The tokens that rows of a rollout have written, and the next ones of each: kept on the device, step by step."""

from itertools import pairwise

import numpy as np
import torch

from specdec.heads.training.script import Script
from specdec.heads.training.settings import RolloutSettings
from specdec.heads.training.text import TrainingText

# A step is recorded as one integer per row: token, and flags.
_ANSWER, _END = 1 << 24, 1 << 25
_TOKEN = _ANSWER - 1


class Records:
    """The rows' documents; each row is somewhere in the script of its own.

    Args:
        script: the tokens around what the target writes.
        settings: of the rollout.
        generator: the source of randomness.
        device: where the model runs.
    """

    def __init__(
        self, script: Script, settings: RolloutSettings, generator: torch.Generator, device: torch.device
    ) -> None:
        self.script, self.settings, self.generator, self.device = script, settings, generator, device
        width = max(len(each) for each in [*script.openings, script.bridge, [0]])
        padded = [each + [0] * (width - len(each)) for each in [*script.openings, script.bridge]]
        table = torch.tensor(padded, device=device)
        self.openings, self.bridge = table[:-1], table[-1]
        self.opening_lengths = torch.tensor([len(each) for each in script.openings], device=device)
        self.ends = torch.tensor(script.ends, device=device)
        self.prefix_end = script.prefix[-1]
        rows = settings.num_rows
        self.forced = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.pointer, self.num_forced, self.num_free, self.limit = (self._zeros() for _ in range(4))
        self.is_answer = torch.zeros(rows, dtype=torch.bool, device=device)
        self.is_greedy, self.has_answer = self.is_answer.clone(), self.is_answer.clone()
        self.num_steps = self._zeros()  # of each row's document
        self.answered = torch.zeros((), dtype=torch.long, device=device)
        self.steps: list[torch.Tensor] = []
        self._begin(~self.is_answer)

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(self.settings.num_rows, dtype=torch.long, device=self.device)

    def num_answer_tokens(self) -> int:
        """The tokens of answers so far; waits for the device."""
        return int(self.answered)

    def mean_lost_steps(self) -> float:
        """Return the mean, over rows, of the steps of a document without an answer, which ``text`` leaves out."""
        return float(self.num_steps.masked_fill(self.has_answer, 0).float().mean())

    def temperatures(self) -> torch.Tensor:
        """Return the temperatures of the next tokens' distributions, (rows,)."""
        answer = torch.where(self.is_greedy, 0.0, self.settings.answer_temperature)
        return torch.where(self.is_answer, answer, self.settings.opening_temperature)

    def append(self, drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Record the next token of each row: a forced one, or the one drawn from the target.

        Returns:
            The tokens to feed next, (rows,), and which rows have ended a document, (rows,). A row that has ended one
            begins the next with the last token of the prefix.
        """
        is_forced = self.pointer < self.num_forced
        at = self.pointer.clamp_max(self.forced.shape[1] - 1)[:, None]
        token = torch.where(is_forced, self.forced.gather(1, at)[:, 0], drawn)
        self.pointer += is_forced.long()
        self.num_free += (~is_forced).long()
        answers = self.is_answer & ~is_forced
        ended = answers & (torch.isin(token, self.ends) | (self.num_free >= self.settings.answer_tokens))
        token, lost = self._lead_over(token, ~self.is_answer & ~is_forced)
        ended = ended | lost
        self.steps.append((token | answers * _ANSWER | ended * _END).int())
        self.answered += answers.sum()
        self.has_answer |= answers
        self.num_steps += 1
        self._begin(ended)
        return token.masked_fill(ended, self.prefix_end), ended

    def _lead_over(self, token: torch.Tensor, in_opening: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Go on to the answer where the text before it has ended; the tokens, and the rows whose text has ended."""
        over = in_opening & (self.num_free >= self.limit)
        lost = torch.zeros_like(over)
        if self.script.end_of_opening is None:
            lost = in_opening & torch.isin(token, self.ends)
            over = over & ~lost
        else:
            over = over | (in_opening & (token == self.script.end_of_opening))
        if self.script.bridge:
            token = token.masked_fill(over, self.script.bridge[0])
            self.forced = torch.where(over[:, None], self.bridge, self.forced)
            self.pointer.masked_fill_(over, 1)
            self.num_forced.masked_fill_(over, len(self.script.bridge))
        self.is_answer |= over
        self.num_free.masked_fill_(over, 0)
        return token, lost

    def _begin(self, rows: torch.Tensor) -> None:
        """Begin another document in ``rows``, True where."""
        shape, device, generator = (self.settings.num_rows,), self.device, self.generator
        chosen = torch.randint(len(self.openings), shape, generator=generator, device=device)
        least, most = self.settings.opening_tokens
        limits = torch.randint(least, most + 1, shape, generator=generator, device=device)
        greedy = torch.rand(shape, generator=generator, device=device) < self.settings.greedy_share
        self.forced = torch.where(rows[:, None], self.openings[chosen], self.forced)
        self.num_forced = torch.where(rows, self.opening_lengths[chosen], self.num_forced)
        self.limit = torch.where(rows, limits, self.limit)
        self.is_greedy = torch.where(rows, greedy, self.is_greedy)
        self.is_answer &= ~rows
        self.has_answer &= ~rows
        self.num_steps.masked_fill_(rows, 0)
        self.pointer.masked_fill_(rows, 0)
        self.num_free.masked_fill_(rows, 0)

    def text(self) -> TrainingText:
        """Return the documents that have an answer, in the order in which they began."""
        if not self.steps:
            return TrainingText.of([], [])
        steps = torch.stack(self.steps, 1).cpu().numpy()
        prefix = np.array(self.script.prefix, dtype=np.int32)
        found = []
        for row in range(len(steps)):
            column = steps[row]
            bounds = [0, *(np.flatnonzero(column & _END) + 1).tolist(), len(column)]
            for start, stop in pairwise(bounds):
                piece = column[start:stop]
                answers = np.flatnonzero(piece & _ANSWER)
                if len(answers):
                    tokens = np.concatenate((prefix, (piece & _TOKEN).astype(np.int32)))
                    found.append((start, row, tokens, len(prefix) + int(answers[0])))
        found.sort(key=lambda each: each[:2])
        return TrainingText.of([each[2] for each in found], [each[3] for each in found])
