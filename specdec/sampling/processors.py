"""Logits to scores: the logits processors of a request's settings, in transformers' order."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from specdec.constraints.path_state import PathState
from specdec.sampling.topk import top_lists
from specdec.settings import Criterion, Processor, Settings

# transformers' processors whose scores depend on the given path alone: not those with state between calls
# (watermarking, classifier-free guidance).
_PATH_PURE = (
    "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
    "EpsilonLogitsWarper", "EtaLogitsWarper", "RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor",
    "NoBadWordsLogitsProcessor", "SequenceBiasLogitsProcessor", "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor", "SuppressTokensLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
    "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "ExponentialDecayLengthPenalty",
    "EncoderRepetitionPenaltyLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization",
    "EncoderNoRepeatNGramLogitsProcessor", "WhisperTimeStampLogitsProcessor",
)  # fmt: skip
_NUM_LIKELY = 32, 512  # tokens that are tried one after the other, before all are sorted
_PURE_CRITERIA = "EosTokenCriteria", "MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria"


class CountPenalty:
    """Lowers the scores of tokens that occur among the path's new tokens, by count and by presence.

    A score becomes mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c[j] is the count of j (OpenAI API
    reference, "Frequency and presence penalties").
    """

    is_path_pure = True

    def __init__(self, frequency: float, presence: float, prompt_length: int) -> None:
        self._frequency, self._presence, self._prompt_length = frequency, presence, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores and the result: ``(batch, vocab)``; paths with their prompts: ``(batch, tokens)``."""
        written = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))
        return scores - counts * self._frequency - (counts > 0) * self._presence


class TopP:
    """Removes the least likely tokens: those that follow more likely ones of ``top_p`` in all.

    What transformers' ``TopPLogitsWarper`` computes, up to rounding and to the order of equals. Where few tokens have
    the mass it takes a tenth of the time, since they alone are sorted.
    """

    is_path_pure = True

    def __init__(self, top_p: float) -> None:
        from transformers.generation.logits_process import TopPLogitsWarper

        self._top_p, self._sorting = top_p, TopPLogitsWarper(top_p)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores and the result: ``(1, vocab)``."""
        probs = scores.softmax(-1)
        for num_top in _NUM_LIKELY:
            (tokens,), (found,) = (each[0] for each in top_lists(probs[None], num_top))
            reached = [*accumulate(found)]
            if reached[-1] >= self._top_p:
                kept = torch.tensor(tokens[: 1 + bisect_left(reached, self._top_p)], device=scores.device)
                return torch.full_like(scores, -torch.inf).index_copy_(-1, kept, scores[:, kept])
        result: torch.Tensor = self._sorting(input_ids, scores)
        return result


class Warper:
    """The processors of a request's settings: penalties and constraints, the caller's own, then warpers.

    Attributes:
        is_pure: all of the caller's own processors are path-pure.
        is_plain_argmax: the emitted token is the argmax of the raw logits.
        is_plain_draw: the emitted token is drawn from softmax(logits / temperature).
        is_on_host: scores may be computed on the host.
    """

    def __init__(
        self, settings: Settings, prompt_length: int, eos_token_ids: Sequence[int], device: torch.device
    ) -> None:
        self.temperature = settings.temperature
        # A caller's own processors may hold tensors on the model's device; all others run on the host.
        self._device = device if settings.logits_processor else torch.device("cpu")
        self.is_pure = not impure(settings)
        own = constraints(settings, prompt_length, list(eos_token_ids), str(self._device))
        self._constraints, self._warpers = [*own, *settings.logits_processor], warpers(settings)
        self._for_drafts = self._constraints if self.is_pure else own
        self.has_processors = bool(self._constraints or self._warpers)
        self.is_plain_argmax = self.temperature == 0.0 and not self.has_processors
        only_temperature = len(self._warpers) == int(self.temperature != 1.0) and not self._constraints
        self.is_plain_draw = self.temperature > 0.0 and only_temperature
        self.is_on_host = self._device.type == "cpu"

    def constrained(self, path: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The scores after penalties, constraints and the caller's own processors, ``(vocab,)``, float32 or better.

        ``path`` includes the prompt.
        """
        return _processed(path, logits, self._constraints)

    def warped(self, path: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """The scores after temperature and truncation."""
        return _processed(path, scores, self._warpers)

    def draft_probs(
        self, path: Sequence[int], logits: torch.Tensor, constraint: PathState | None = None
    ) -> torch.Tensor:
        """The distribution of a drafter's logits under the settings and the constraint after the path, ``(vocab,)``.

        The caller's own processors are applied only if all of them are path-pure: others never run on tokens that may
        not be written.
        """
        scores = _processed(path, logits.to(self._device), self._for_drafts)
        if constraint is not None:
            scores = constraint.masked(scores)
        return self.warped(path, scores).softmax(-1)


def _processed(path: Sequence[int], logits: torch.Tensor, processors: Sequence[Processor]) -> torch.Tensor:
    """Apply processors to logits, ``(vocab,)``; returns scores in float32 or better."""
    # A copy: processors may write in place, and the logits belong to the whole batch.
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=bool(processors))[None]
    if processors:
        input_ids = torch.tensor([list(path)], device=scores.device)
        for processor in processors:
            scores = processor(input_ids, scores)
    return scores[0]


def constraints(settings: Settings, prompt_length: int, eos_token_ids: list[int], device: str) -> list[Processor]:
    """Biases, penalties, forbidden and forced tokens; transformers' processors, if it has them."""
    from transformers.generation import logits_process as hf

    chosen: list[Processor] = []
    if settings.logit_bias:
        chosen.append(hf.SequenceBiasLogitsProcessor({(token,): float(bias) for token, bias in settings.logit_bias}))
    if settings.frequency_penalty or settings.presence_penalty:
        chosen.append(CountPenalty(settings.frequency_penalty, settings.presence_penalty, prompt_length))
    if settings.repetition_penalty != 1.0:
        chosen.append(hf.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.no_repeat_ngram_size is not None:
        chosen.append(hf.NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if settings.bad_words_ids:
        chosen.append(hf.NoBadWordsLogitsProcessor(list(map(list, settings.bad_words_ids)), eos_token_ids or None))
    if settings.min_new_tokens is None and settings.min_length is not None and eos_token_ids:
        chosen.append(hf.MinLengthLogitsProcessor(settings.min_length, eos_token_ids, device=device))
    if settings.min_new_tokens is not None and eos_token_ids:
        least = settings.min_new_tokens
        chosen.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, least, eos_token_ids, device=device))
    if settings.forced_bos_token_id is not None:
        chosen.append(hf.ForcedBOSTokenLogitsProcessor(settings.forced_bos_token_id))
    if settings.forced_eos_token_id:
        longest, forced = prompt_length + settings.max_new_tokens, [*settings.forced_eos_token_id]
        chosen.append(hf.ForcedEOSTokenLogitsProcessor(longest, forced, device=device))
    if settings.suppress_tokens:
        chosen.append(hf.SuppressTokensLogitsProcessor(settings.suppress_tokens, device=device))
    if settings.begin_suppress_tokens:
        at_begin = settings.begin_suppress_tokens
        begin = prompt_length + (prompt_length == 1 and settings.forced_bos_token_id is not None)
        chosen.append(hf.SuppressTokensAtBeginLogitsProcessor(at_begin, begin, device=device))
    return chosen


def warpers(settings: Settings) -> list[Processor]:
    """Temperature and truncation; transformers' processors, but for top-p."""
    from transformers.generation import logits_process as hf

    chosen: list[Processor] = []
    if settings.temperature not in (0.0, 1.0):
        chosen.append(hf.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        chosen.append(hf.TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        chosen.append(TopP(settings.top_p))
    if settings.min_p is not None:
        chosen.append(hf.MinPLogitsWarper(settings.min_p))
    return chosen


def impure(settings: Settings) -> list[Processor]:
    """The caller's processors that may depend on more than the given path."""
    return [processor for processor in settings.logits_processor if not is_path_pure(processor)]


def stateful(settings: Settings) -> list[Any]:
    """The caller's processors and criteria that may depend on earlier calls."""
    return [one for one in (*settings.logits_processor, *settings.stopping_criteria) if not is_path_pure(one)]


def is_path_pure(function: Processor | Criterion) -> bool:
    """Return True if what a processor or criterion returns depends on its arguments alone, as known or declared.

    A subclass of one of transformers' classes is as pure as that class, unless its calls are its own.
    """
    from transformers.generation import logits_process, stopping_criteria

    known = {getattr(logits_process, name).__call__ for name in _PATH_PURE}
    known |= {getattr(stopping_criteria, name).__call__ for name in _PURE_CRITERIA}
    return type(function).__call__ in known or bool(getattr(function, "is_path_pure", False))


def processor_name(processor: Processor | Criterion) -> str:
    """The name of a processor's or criterion's function or class."""
    return str(getattr(processor, "__name__", type(processor).__name__))
