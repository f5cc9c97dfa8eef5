"""Logits to warped law to token: what the model says next at a node, after every processor on that node's own path."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager
from typing import Protocol

import torch

from specdec.errors import NumericsError, SpecdecError, failure
from specdec.randomness import Chances
from specdec.settings import Processor, Settings
from specdec.tree import DraftTree

NO_TOKEN = -1

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


class Rows(Protocol):
    """One sequence's part of a forward pass."""

    def argmax(self, node: int) -> int:
        """The lowest id of greatest logit at a node."""

    def logits(self, node: int) -> torch.Tensor:
        """The raw logits at a node, shape ``(vocab,)``."""

    def is_finite(self, node: int) -> bool:
        """Return True if the greatest logit at a node is finite."""


class Target(Protocol):
    """The target as a verifier sees it: the questions that it may ask about one draft tree."""

    def draw(self, node: int) -> int:
        """The token the target emits at a node: the argmax at temperature 0, else a keyed draw from its law.

        NO_TOKEN, which matches no child, where there is no answer.
        """

    def law(self, node: int) -> torch.Tensor | None:
        """The law p of the next token at a node, shape ``(vocab,)``, float32 or better, sums to one.

        None where there is no answer. Not to be written to.
        """

    def position(self, node: int) -> int:
        """The absolute position of the next token at a node."""


class Warper:
    """The settings' processors in transformers' order: penalties and constraints, the caller's own, then warpers."""

    def __init__(
        self, settings: Settings, prompt_length: int, eos_token_ids: ReadOnly[int], device: torch.device
    ) -> None:
        self.temperature = settings.temperature
        self._device = device
        self.is_pure = not impure(settings)
        first, last = constraints(settings, prompt_length, list(eos_token_ids), str(device)), warpers(settings)
        self._processors = [*first, *settings.logits_processor, *last]
        self._pure_processors = self._processors if self.is_pure else [*first, *last]

    @property
    def has_processors(self) -> bool:
        """True if any logits processor applies, so that scores differ from logits."""
        return bool(self._processors)

    @property
    def is_plain_argmax(self) -> bool:
        """True if the emitted token is the argmax of the raw logits."""
        return self.temperature == 0.0 and not self._processors

    def scores(self, path: ReadOnly[int], logits: torch.Tensor) -> torch.Tensor:
        """Warped scores, shape ``(vocab,)``, float32 or better, at the end of ``path`` (prompt included)."""
        return _processed(path, logits, self._processors)

    def draft_law(self, path: ReadOnly[int], logits: torch.Tensor) -> torch.Tensor:
        """Return the distribution that the settings make of a drafter's logits, on the target's device.

        A caller's own processors take part only where all of them are path-pure: no other kind is asked about tokens
        that may never be written.
        """
        return _processed(path, logits.to(self._device), self._pure_processors).softmax(-1)


def _processed(path: ReadOnly[int], logits: torch.Tensor, processors: ReadOnly[Processor]) -> torch.Tensor:
    """Return the scores that processors make of logits, shape ``(vocab,)``, float32 or better."""
    # A copy, since processors may write in place and the logits are the whole batch's.
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)[None]
    if processors:
        input_ids = torch.tensor([list(path)], device=scores.device)
        for processor in processors:
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


def impure(settings: Settings) -> list[Processor]:
    """The caller's processors that may depend on more than the path they are asked about."""
    from transformers.generation import logits_process as hf

    known = tuple(getattr(hf, name) for name in _PATH_PURE)
    return [
        processor
        for processor in settings.logits_processor
        if not (isinstance(processor, known) or getattr(processor, "is_path_pure", False))
    ]


def processor_name(processor: Processor) -> str:
    """The name of a processor's function or class."""
    return str(getattr(processor, "__name__", type(processor).__name__))


class SequenceTarget:
    """The target's answers for one sequence's tree, each evaluated when it is first asked for.

    The accepted path asks for one answer per emitted token, which is what plain decoding would compute. ``faults`` says
    why there is none where there is none.
    """

    def __init__(self, tree: DraftTree, rows: Rows, committed: ReadOnly[int], warper: Warper, chances: Chances) -> None:
        self._tree = tree
        self._rows = rows
        self._committed = committed
        self._length = len(committed)
        self._warper = warper
        self._chances = chances
        self._drawn: dict[int, int] = {}
        self._laws: dict[int, torch.Tensor | None] = {}
        self.faults: dict[int, SpecdecError] = {}

    def draw(self, node: int) -> int:
        if node not in self._drawn:
            with self._noting_faults(node):
                self._drawn[node] = self._draw(node)
        return self._drawn.setdefault(node, NO_TOKEN)

    def law(self, node: int) -> torch.Tensor | None:
        if node not in self._laws:
            with self._noting_faults(node):
                self._laws[node] = self._law(node)
        return self._laws.setdefault(node, None)

    def position(self, node: int) -> int:
        return self._length + self._tree.depths[node]

    def best_two(self, node: int, gumbel: Callable[[int, int], torch.Tensor]) -> torch.Tensor | None:
        """The two best scores at a node, in units of logits, shape ``(2,)``, on the model's device.

        Scores are those that the token was the greatest of; a drawn one's with ``gumbel(position, count)`` added. None
        where that can't be asked.
        """
        temperature = self._warper.temperature
        if self._warper.is_plain_argmax:
            scores = self._rows.logits(node)
        elif not self._warper.is_pure:  # a caller's own processor is asked once about a position
            return None
        elif temperature == 0.0:
            scores = self._scores(node)
        else:
            law = self._law(node)
            scores = (law.double().log() + gumbel(self.position(node), len(law)).to(law.device)) * temperature
        return scores.topk(2).values

    def has_logits(self, node: int) -> bool:
        """True where the model gave numbers at a node."""
        return self._rows.is_finite(node)

    def predict(self, node: int, wants_draw: bool) -> int | None:
        """Return the prediction that a proposer may hear; None on a path where no token is possible.

        It is the draw where that is wanted, else the raw argmax. A caller's own processor that isn't path-pure is never
        asked about paths that the text may not take: the raw argmax stands in for the draw.
        """
        if not self._rows.is_finite(node):
            return None
        if not (wants_draw and self._warper.is_pure):
            return self._rows.argmax(node)
        try:
            token = self._drawn[node] if node in self._drawn else self._draw(node)
        except Exception:  # a processor's, on a path that may never be written
            return None
        return None if token == NO_TOKEN else token

    def likeliest(self, nodes: ReadOnly[int], k: int) -> dict[int, tuple[tuple[int, float], ...]]:
        """The ``k`` likeliest next tokens at some nodes by the raw logits, likeliest first, with probabilities.

        Nodes where the model gave no numbers are left out.
        """
        numbered = [node for node in nodes if self._rows.is_finite(node)]
        if not numbered:
            return {}
        laws = torch.stack([self._rows.logits(node) for node in numbered])
        laws = laws.softmax(-1, dtype=torch.promote_types(laws.dtype, torch.float32))
        probabilities, ids = laws.topk(min(k, laws.shape[-1]))
        told = zip(numbered, ids.tolist(), probabilities.tolist(), strict=True)
        return {node: tuple(zip(tokens, chances, strict=True)) for node, tokens, chances in told}

    @contextmanager
    def _noting_faults(self, node: int) -> Iterator[None]:
        try:
            yield
        except SpecdecError as error:
            self.faults[node] = error
        except Exception as error:  # a caller's own processor
            self.faults[node] = failure("a logits processor", error)

    def _draw(self, node: int) -> int:
        if self._warper.is_plain_argmax:
            self._check_logits(node)
            return self._rows.argmax(node)
        if self._warper.temperature == 0.0:
            return int(self._scores(node).argmax())
        return self._chances.categorical(self._scores(node).softmax(-1), self.position(node))

    def _law(self, node: int) -> torch.Tensor:
        scores = self._scores(node)
        if self._warper.temperature == 0.0:
            return torch.zeros_like(scores).index_fill_(0, scores.argmax(), 1.0)
        return scores.softmax(-1)

    def _scores(self, node: int) -> torch.Tensor:
        """The warped scores at the end of the node's path."""
        self._check_logits(node)
        path = [*self._committed, *self._tree.path(node)] if self._warper.has_processors else ()
        scores = self._warper.scores(path, self._rows.logits(node))
        if not scores.max().isfinite():
            raise NumericsError(
                f"the logits processors leave no token possible at position {self.position(node)} (their greatest "
                f"score is {float(scores.max())}): loosen the constraints, or check your own processors"
            )
        return scores

    def _check_logits(self, node: int) -> None:
        if not self._rows.is_finite(node):
            raise NumericsError(
                f"the logits for position {self.position(node)} are NaN or infinite. Check the model's weights and "
                "dtype (float16 overflows where bfloat16 and float32 do not)"
            )
