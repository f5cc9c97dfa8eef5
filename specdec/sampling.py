"""Logits to warped law to token: what the model says next at a node, after every processor on that node's own path."""

from collections.abc import Sequence as ReadOnly
from typing import Protocol

import torch

from specdec.errors import NumericsError, PluginError, SpecdecError
from specdec.randomness import Randomness
from specdec.settings import Processor, Settings
from specdec.tree import DraftTree

NO_TOKEN = -1


class Rows(Protocol):
    """One sequence's part of a forward pass."""

    def argmax(self, node: int) -> int:
        """The lowest id of greatest logit at a node."""

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, shape ``(vocab,)``."""

    def is_finite(self, node: int) -> bool:
        """Whether the greatest logit at a node is a number."""


class Target(Protocol):
    """What a verifier may ask of the model about one tree."""

    def draw(self, node: int) -> int:
        """The token the target emits at a node: the argmax at temperature 0, else a keyed draw from its law."""

    def law(self, node: int) -> torch.Tensor:
        """The law p of the next token at a node, shape ``(vocab,)``, float32 or better, sums to one."""


class Warper:
    """The settings' processors in transformers' order: penalties and constraints, the caller's own, then warpers."""

    def __init__(
        self, settings: Settings, prompt_length: int, eos_token_ids: ReadOnly[int], device: torch.device
    ) -> None:
        self.temperature = settings.temperature
        self.is_pure = not settings.logits_processor
        self._processors = [
            *constraints(settings, prompt_length, list(eos_token_ids), str(device)),
            *settings.logits_processor,
            *warpers(settings),
        ]

    @property
    def is_plain_argmax(self) -> bool:
        """Whether the emitted token is the argmax of the raw logits."""
        return self.temperature == 0.0 and not self._processors

    def scores(self, path: ReadOnly[int], logits: torch.Tensor) -> torch.Tensor:
        """Warped scores, shape ``(vocab,)``, float32 or better, at the end of ``path`` (prompt included)."""
        # A copy, since processors may write in place and the logits are the whole batch's.
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)[None]
        if self._processors:
            input_ids = torch.tensor([list(path)], device=logits.device)
            for processor in self._processors:
                scores = processor(input_ids, scores)
        return scores[0]


def constraints(settings: Settings, prompt_length: int, eos_token_ids: list[int], device: str) -> list[Processor]:
    """Penalties and forbidden tokens: transformers' own processors, so that they mean the same."""
    from transformers.generation import logits_process as hf

    chosen: list[Processor] = []
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


class SequenceTarget:
    """The target's answers for one sequence's tree, each evaluated when it is first asked for.

    The accepted path asks for one draw per emitted token, which is what plain decoding would compute.
    """

    def __init__(
        self, tree: DraftTree, rows: Rows, committed: ReadOnly[int], warper: Warper, randomness: Randomness
    ) -> None:
        self._tree = tree
        self._rows = rows
        self._committed = committed
        self._length = len(committed)
        self._warper = warper
        self._randomness = randomness
        self._drawn: dict[int, int] = {}
        self.fault: SpecdecError | None = None

    def draw(self, node: int) -> int:
        """As the protocol says; NO_TOKEN, which matches no child, where there is no answer, and ``fault`` says why."""
        if node not in self._drawn:
            try:
                self._drawn[node] = self._draw(node)
            except SpecdecError as error:
                self.fault, self._drawn[node] = error, NO_TOKEN
            except Exception as error:  # a caller's own processor
                self.fault = PluginError(f"a logits processor failed with {type(error).__name__}: {error}")
                self.fault.__cause__, self._drawn[node] = error, NO_TOKEN
        return self._drawn[node]

    def predict(self, node: int, wants_draw: bool) -> int | None:
        """What a proposer may hear: the draw, or the raw argmax; None on a path where no token is possible.

        Callers' own processors are never asked about paths that the text may not take.
        """
        if not (wants_draw and self._warper.is_pure):
            return self._rows.argmax(node)
        try:
            token = self._drawn[node] if node in self._drawn else self._draw(node)
        except SpecdecError:
            return None
        return None if token == NO_TOKEN else token

    def _draw(self, node: int) -> int:
        position = self._length + self._tree.depths[node]
        if not self._rows.is_finite(node):
            raise NumericsError(
                f"the logits for position {position} are NaN or infinite. Check the model's weights and dtype (float16 "
                "overflows where bfloat16 and float32 do not)"
            )
        if self._warper.is_plain_argmax:
            return self._rows.argmax(node)
        scores = self._scores(node)
        if not scores.max().isfinite():
            raise NumericsError(
                f"the logits processors leave no token possible at position {position} (their greatest score is "
                f"{float(scores.max())}): loosen the constraints, or check your own processors"
            )
        if self._warper.temperature == 0.0:
            return int(scores.argmax())
        return self._randomness.categorical(scores.softmax(-1), position)

    def law(self, node: int) -> torch.Tensor:
        scores = self._scores(node)
        if self._warper.temperature == 0.0:
            return torch.zeros_like(scores).index_fill_(0, scores.argmax(), 1.0)
        return scores.softmax(-1)

    def _scores(self, node: int) -> torch.Tensor:
        path = [*self._committed, *self._tree.path(node)]
        return self._warper.scores(path, self._rows.logits(node))
