"""Logits to scores: the processors that a request's settings ask for, in transformers' order."""

from collections.abc import Sequence

import torch

from specdec.sampling.penalties import Bias, CountPenalty
from specdec.settings import Processor, Settings

# transformers' processors whose scores are a function of the path they are given. Those that keep state between calls
# (watermarking, classifier-free guidance) are not among them.
_PATH_PURE = (
    "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper",
    "EpsilonLogitsWarper", "EtaLogitsWarper", "RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor",
    "NoBadWordsLogitsProcessor", "SequenceBiasLogitsProcessor", "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor", "SuppressTokensLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
    "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor", "ExponentialDecayLengthPenalty",
    "EncoderRepetitionPenaltyLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization",
)  # fmt: skip


class Warper:
    """The settings' processors in transformers' order: penalties and constraints, the caller's own, then warpers."""

    def __init__(
        self, settings: Settings, prompt_length: int, eos_token_ids: Sequence[int], device: torch.device
    ) -> None:
        self.temperature = settings.temperature
        # A caller's own processors may hold tensors on the model's device; all else is decided on the host.
        self._device = device if settings.logits_processor else torch.device("cpu")
        self.is_pure = not impure(settings)
        own = constraints(settings, prompt_length, list(eos_token_ids), str(self._device))
        self._constraints, self._warpers = [*own, *settings.logits_processor], warpers(settings)
        self._for_drafts = [*self._constraints, *self._warpers] if self.is_pure else [*own, *self._warpers]
        self.has_processors = bool(self._constraints or self._warpers)
        # True if the emitted token is the argmax of the raw logits; and if scores may be made on the host.
        self.is_plain_argmax = self.temperature == 0.0 and not self.has_processors
        self.is_on_host = self._device.type == "cpu"

    def constrained(self, path: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The scores behind penalties, constraints and the caller's own processors, at the end of ``path``.

        Shape ``(vocab,)``, float32 or better; the path has the prompt in it.
        """
        return _processed(path, logits, self._constraints)

    def warped(self, path: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        """The same scores behind temperature and truncation."""
        return _processed(path, scores, self._warpers)

    def draft_law(self, path: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Return the distribution that the settings make of a drafter's logits.

        A caller's own processors take part only where all of them are path-pure: no other kind is asked about tokens
        that may never be written.
        """
        return _processed(path, logits.to(self._device), self._for_drafts).softmax(-1)


def _processed(path: Sequence[int], logits: torch.Tensor, processors: Sequence[Processor]) -> torch.Tensor:
    """Return the scores that processors make of logits, shape ``(vocab,)``, float32 or better."""
    # Processors get a copy, as they may write in place and the logits are the whole batch's.
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=bool(processors))[None]
    if processors:
        input_ids = torch.tensor([list(path)], device=scores.device)
        for processor in processors:
            scores = processor(input_ids, scores)
    return scores[0]


def constraints(settings: Settings, prompt_length: int, eos_token_ids: list[int], device: str) -> list[Processor]:
    """Biases, penalties and forbidden tokens: transformers' own processors where it has them."""
    from transformers.generation import logits_process as hf

    chosen: list[Processor] = []
    if settings.logit_bias:
        chosen.append(Bias(dict(settings.logit_bias), device))
    if settings.frequency_penalty or settings.presence_penalty:
        chosen.append(CountPenalty(settings.frequency_penalty, settings.presence_penalty, prompt_length))
    if settings.repetition_penalty != 1.0:
        chosen.append(hf.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.no_repeat_ngram_size is not None:
        chosen.append(hf.NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if settings.bad_words_ids:
        chosen.append(hf.NoBadWordsLogitsProcessor(list(map(list, settings.bad_words_ids)), eos_token_ids or None))
    if settings.min_new_tokens is not None and eos_token_ids:
        least = settings.min_new_tokens
        chosen.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, least, eos_token_ids, device=device))
    if settings.suppress_tokens:
        chosen.append(hf.SuppressTokensLogitsProcessor(settings.suppress_tokens, device=device))
    if settings.begin_suppress_tokens:
        at_begin = settings.begin_suppress_tokens
        chosen.append(hf.SuppressTokensAtBeginLogitsProcessor(at_begin, prompt_length, device=device))
    return chosen


def warpers(settings: Settings) -> list[Processor]:
    """Temperature and truncation, transformers' own as well."""
    from transformers.generation import logits_process as hf

    chosen: list[Processor] = []
    if settings.temperature not in (0.0, 1.0):
        chosen.append(hf.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        chosen.append(hf.TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        chosen.append(hf.TopPLogitsWarper(settings.top_p))
    if settings.min_p is not None:
        chosen.append(hf.MinPLogitsWarper(settings.min_p))
    return chosen


def impure(settings: Settings) -> list[Processor]:
    """The caller's processors that may depend on more than the path they are asked about."""
    return [processor for processor in settings.logits_processor if not is_path_pure(processor)]


def is_path_pure(processor: Processor) -> bool:
    """Return True if a processor's scores are known, or said, to be a function of its arguments alone."""
    from transformers.generation import logits_process as hf

    known = tuple(getattr(hf, name) for name in _PATH_PURE)
    return isinstance(processor, known) or getattr(processor, "is_path_pure", False)


def processor_name(processor: Processor) -> str:
    """The name of a processor's function or class."""
    return str(getattr(processor, "__name__", type(processor).__name__))
