"""transformers' ``generate`` and specdec with a common interface: answer a prompt, show each step, and time it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specdec.generator import Generator

# Called with the new tokens of a step, and the seconds so far.
Show = Callable[[Sequence[int], float], None]


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One decoded prompt. ``seconds`` include prefill and exclude the time spent in ``show``."""

    token_ids: tuple[int, ...]
    seconds: float
    num_steps: int

    @property
    def tokens_per_second(self) -> float:
        """New tokens over seconds."""
        return len(self.token_ids) / self.seconds


class Contender(Protocol):
    """One side of the comparison."""

    def answer(self, prompt: Sequence[int], max_new_tokens: int, show: Show) -> TimedAnswer:
        """Decode greedily, and call ``show`` after each step."""


class Stopwatch:
    """Measures seconds since it was made, by a monotonic clock, excluding ``paused`` blocks."""

    def __init__(self) -> None:
        self._start, self._paused = perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far; call it outside ``paused``."""
        return perf_counter() - self._start - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        since = perf_counter()
        try:
            yield
        finally:
            self._paused += perf_counter() - since


class TransformersContender:
    """A model's own ``generate``, greedy. The model must not be packed by a generator.

    Args:
        ends: ends of text (default: the model's own).
    """

    def __init__(self, model: Any, ends: Sequence[int] | None = None) -> None:
        self.model = model
        model.generation_config = _greedy(model)
        if ends is not None:
            model.generation_config.eos_token_id = list(ends) or None

    def answer(self, prompt: Sequence[int], max_new_tokens: int, show: Show) -> TimedAnswer:
        """See ``Contender``."""
        import torch

        ids = torch.tensor([list(prompt)], device=self.model.device)
        watch = Stopwatch()
        streamer = _Streamer(watch, show)
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, streamer=streamer
        )
        seconds = watch.seconds
        tokens = tuple(output[0, len(prompt) :].tolist())
        return TimedAnswer(tokens, seconds, len(tokens))


class SpecdecContender:
    """A specdec generator; ``ends`` are as of ``TransformersContender``."""

    def __init__(self, generator: "Generator", ends: Sequence[int] | None = None) -> None:
        self.generator = generator
        self._settings: dict[str, Any] = {} if ends is None else {"eos_token_id": ends}

    def answer(self, prompt: Sequence[int], max_new_tokens: int, show: Show) -> TimedAnswer:
        """See ``Contender``."""
        watch = Stopwatch()
        for chunk in self.generator.stream(list(prompt), max_new_tokens=max_new_tokens, **self._settings):
            seconds, result = watch.seconds, chunk.result
            with watch.paused():
                show(chunk.token_ids, seconds)
        assert result is not None  # set in the last chunk
        return TimedAnswer(tuple(result.token_ids), watch.seconds, result.stats.steps)


class _Streamer:
    """The ``streamer`` of ``generate``: called once with the prompt, then with each token."""

    def __init__(self, watch: Stopwatch, show: Show) -> None:
        self._watch, self._show, self._has_prompt = watch, show, False

    def put(self, value: Any) -> None:
        seconds = self._watch.seconds
        with self._watch.paused():
            if self._has_prompt:
                self._show(value.reshape(-1).tolist(), seconds)
            self._has_prompt = True

    def end(self) -> None:
        """Called after the last token."""


def _greedy(model: Any) -> Any:
    """Return a greedy generation config with the model's own end-of-text, forbidden and forced tokens."""
    from transformers import GenerationConfig

    from specdec.requests.model_defaults import OWN_RULES

    own = model.generation_config
    names = ("eos_token_id", "bos_token_id", "pad_token_id", *OWN_RULES)
    return GenerationConfig(do_sample=False, **{name: getattr(own, name, None) for name in names})
