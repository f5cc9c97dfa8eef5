"""Transcribes recordings with a model like Whisper, by its own ``generate`` with specdec's decoding."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specdec.apps.serving.errors import ApiError, invalid
from specdec.apps.serving.transcriptions.form import TranscriptionForm
from specdec.errors import SpecdecError, in_one_line, is_out_of_memory
from specdec.inputs.messages import sampling_rate_of
from specdec.inputs.wav import samples_of
from specdec.models.notes import lock_of
from specdec.settings import LEAST_TEMPERATURE


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a recording, in seconds, with its text."""

    start: float
    end: float
    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of a recording.

    Attributes:
        language: its name in English; None for a model of one language.
        seconds: length of the recording.
        segments: empty if no timestamps were requested.
    """

    text: str
    language: str | None
    seconds: float
    segments: list[Segment] = field(default_factory=list)


class Stop:
    """A stopping criterion that ends a transcription early.

    Args:
        deadline: of ``time.perf_counter``.
    """

    is_path_pure = True  # it returns the same for every text, so that requests needn't copy it

    def __init__(self, deadline: float) -> None:
        self._deadline, self._is_set = deadline, threading.Event()

    def set(self) -> None:
        """Stop at the next token."""
        self._is_set.set()

    @property
    def is_due(self) -> bool:
        """True once the transcription is to end."""
        return self._is_set.is_set() or time.perf_counter() > self._deadline

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.is_due, device=input_ids.device)


def transcribes(model: Any) -> bool:
    """Return True for models with Whisper's ``generate``, which divides a recording into segments."""
    return any(cls.__name__ == "WhisperGenerationMixin" for cls in type(model).__mro__)


class Transcriber:
    """Transcribes recordings one at a time, in a thread of its own.

    Args:
        model: one that ``transcribes``.
        processor: the model's, used by this object alone.
        custom_generate: decodes each segment.
    """

    def __init__(self, model: Any, processor: Any, custom_generate: Callable[..., Any]) -> None:
        self._model, self._processor, self._custom_generate = model, processor, custom_generate
        self._rate = sampling_rate_of(processor)
        self.thread = ThreadPoolExecutor(1, "specdec-transcription")

    def transcript(self, form: TranscriptionForm, stop: Stop) -> Transcript:
        """Return a recording's text.

        Raises:
            ApiError: for a file or an option that can't be used, or if ``stop`` is due.
        """
        try:
            samples = samples_of(form.file, self._rate)
        except SpecdecError as error:
            raise invalid("file", str(error)) from None
        if stop.is_due:
            raise ApiError(503, "The server is too busy: the recording waited too long.", code="timeout")
        try:
            # Passes of the engine's thread switch the attention that the encoder would run with.
            with lock_of(self._model), torch.no_grad():
                return self._transcript(samples, form, stop)
        except ApiError:
            raise
        except Exception as error:  # transformers' code, which refuses some options by errors of several kinds
            if is_out_of_memory(error):
                raise
            raise ApiError(400, f"The recording can't be transcribed: {in_one_line(error)}", "file") from error

    def close(self) -> None:
        """End the thread after its current recording."""
        self.thread.shutdown(cancel_futures=True)

    def _transcript(self, samples: np.ndarray, form: TranscriptionForm, stop: Stop) -> Transcript:
        model, extractor = self._model, self._processor.feature_extractor
        is_long = len(samples) > extractor.n_samples
        wants_segments = form.response_format == "verbose_json"
        padding = {"truncation": False, "padding": "longest"} if is_long else {}
        encoded = extractor(
            samples, sampling_rate=self._rate, return_tensors="pt", return_attention_mask=True, **padding
        )
        features = encoded["input_features"].to(model.device, model.dtype)
        language = self._language(features[..., : extractor.nb_max_frames], form.language)
        options: dict[str, Any] = {"language": language, "task": "transcribe"} if language else {}
        if form.prompt:
            try:
                ids = self._processor.get_prompt_ids(form.prompt, return_tensors="pt")
            except ValueError as error:  # for special tokens
                raise invalid("prompt", in_one_line(error)) from error
            options |= {"prompt_ids": ids.to(model.device)}
        if form.temperature >= LEAST_TEMPERATURE:
            options |= {"do_sample": True, "temperature": form.temperature}
        found = model.generate(
            features,
            attention_mask=encoded["attention_mask"].to(model.device),
            return_timestamps=wants_segments or is_long,
            return_segments=True,
            num_beams=1,
            stopping_criteria=[stop],
            custom_generate=self._decode,
            **options,
        )
        if stop.is_due:
            raise ApiError(503, "The transcription took longer than this server's timeout.", code="timeout")
        segments = [self._segment(each) for each in found["segments"][0]] if wants_segments else []
        return Transcript(self._text(found["sequences"][0]), _name_of(language), len(samples) / self._rate, segments)

    def _decode(self, *args: Any, **given: Any) -> Any:
        """Decode a segment; its passes lock the model one by one, so the lock is released meanwhile."""
        lock = lock_of(self._model)
        lock.__exit__(None, None, None)
        try:
            return self._custom_generate(*args, **given)
        finally:
            lock.__enter__()

    def _language(self, features: torch.Tensor, given: str | None) -> str | None:
        """Return the language to transcribe, as the model names it; None for a model of one language."""
        config = self._model.generation_config
        if not getattr(config, "is_multilingual", False):
            if given not in {None, "en"}:
                raise invalid("language", "this model transcribes English alone")
            return None
        if given is None:
            token = int(self._model.detect_language(input_features=features)[0])
            found: str = next(name[2:-2] for name, own in config.lang_to_id.items() if own == token)
            return found
        if given not in (known := {name[2:-2] for name in config.lang_to_id}):
            raise invalid("language", f"give one of {', '.join(sorted(known))}")
        return given

    def _segment(self, found: Any) -> Segment:
        ids = found["tokens"]
        return Segment(float(found["start"]), float(found["end"]), self._text(ids), ids.tolist())

    def _text(self, ids: torch.Tensor) -> str:
        return str(self._processor.tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def _name_of(language: str | None) -> str | None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return None if language is None else str(LANGUAGES.get(language, language))
