"""The target writes text for training: many rows side by side in one static cache.

Each row writes one document after another. The shared prefix stays in the row's cache, and all bookkeeping is done on
the device, so a step waits for nothing but the model's forward pass.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specdec.errors import ModelError, NumericsError
from specdec.heads.training.records import Records
from specdec.heads.training.script import Script
from specdec.heads.training.settings import RolloutSettings
from specdec.heads.training.static_cache import StaticCache
from specdec.models.architecture import name_of
from specdec.models.attention_switch import switched, why_fixed

_STEPS_PER_CHECK = 16
_LEAST_NOISE = 1e-30


class Rollout:
    """A target that writes documents in rows.

    Args:
        model: the target.
        script: the tokens around what the target writes.
        settings: how it writes.
        generator: the source of randomness, on the model's device.

    Raises:
        ModelError: for a model whose attention can't be exchanged.
    """

    def __init__(
        self, model: PreTrainedModel, script: Script, settings: RolloutSettings, generator: torch.Generator
    ) -> None:
        if reason := why_fixed(model):
            raise ModelError(f"{name_of(model)} can't write many texts at once: {reason}")
        self.model, self.script, self.settings, self.generator = model, script, settings, generator
        self.cache = StaticCache(model, settings.num_rows, settings.num_slots(script))
        self.records = Records(script, settings, generator, model.device)

    @torch.inference_mode()
    def write(self, goes_on: Callable[["Rollout"], bool]) -> None:
        """Write documents into ``records``; call it once.

        Documents that are unfinished at the end are cut. Nothing is deduplicated.

        Args:
            goes_on: called now and then with the rollout; False ends the text.
        """
        assert not self.records.steps, "a rollout writes once"
        prefix = torch.tensor(self.script.prefix, device=self.model.device)
        with self._attention():
            for token in prefix[:-1]:
                self._logits(token.expand(self.settings.num_rows))
                self.cache.lengths += 1
            tokens, steps, log_min_p = prefix[-1].expand(self.settings.num_rows), 0, math.log(self.settings.min_p)
            while steps % _STEPS_PER_CHECK or goes_on(self):
                drawn = sampled(self._logits(tokens), self.records.temperatures(), log_min_p, self.generator)
                tokens, ended = self.records.append(drawn)
                self.cache.lengths += 1
                self.cache.lengths.masked_fill_(ended, len(self.script.prefix) - 1)
                steps += 1

    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed a token per row; the logits, (rows, vocab)."""
        self.cache.place()
        positions = self.cache.lengths[:, None]
        output = self.model(tokens[:, None], position_ids=positions, use_cache=False, logits_to_keep=1)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """Temporarily give the model the static cache's attention."""
        name = f"specdec_rollout_{id(self)}"
        ALL_ATTENTION_FUNCTIONS[name] = self.cache.attend
        try:
            with switched(self.model.config.get_text_config(), name):
                yield
        finally:
            del ALL_ATTENTION_FUNCTIONS[name]


def sampled(
    logits: torch.Tensor, temperatures: torch.Tensor, log_min_p: float, generator: torch.Generator
) -> torch.Tensor:
    """Draw a token per row by the Gumbel-max trick; a temperature of 0 gives the top token.

    Args:
        logits: (rows, vocab).
        temperatures: (rows,).
        log_min_p: tokens below this share of the top probability aren't drawn; its logarithm.
        generator: the source of randomness.

    Raises:
        NumericsError: on a CPU, for logits that are NaN.
    """
    least = logits.amax(-1).float() + temperatures * log_min_p
    if logits.device.type == "cpu":
        return _of_candidates(logits, temperatures, least, generator)
    logits = logits.float()  # on a GPU all tokens get noise: to count the candidates would wait for the device
    scores = _noise(logits, generator).mul_(-temperatures[:, None]).add_(logits)
    return scores.masked_fill_(logits < least[:, None], float("-inf")).argmax(-1)


def _of_candidates(
    logits: torch.Tensor, temperatures: torch.Tensor, least: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Draw noise for the tokens of ``least`` logits or more alone: a few in each row, of some 50,000."""
    if least.isnan().any():  # such a row has no candidate
        raise NumericsError(
            "the logits are NaN: check the model's weights and dtype (float16 overflows where bfloat16 and float32 "
            "do not)"
        )
    rows, tokens = (logits >= least[:, None]).nonzero(as_tuple=True)
    candidates = logits[rows, tokens].float()
    scores = candidates - temperatures[rows] * _noise(candidates, generator)
    best = scores.new_full((len(logits),), float("-inf")).scatter_reduce_(0, rows, scores, "amax")
    is_drawn = scores == best[rows]
    drawn = tokens.new_full((len(logits),), logits.shape[1])
    return drawn.scatter_reduce_(0, rows[is_drawn], tokens[is_drawn], "amin")  # of equal scores, the first token


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return negated Gumbel noise of a tensor's shape."""
    return torch.empty_like(like).exponential_(generator=generator).clamp_min_(_LEAST_NOISE).log_()
