"""The target's own text in a folder, which grows until there is enough, and which a later run goes on with."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, RequestError, is_out_of_memory
from specdec.models.architecture import name_of
from specdec.training.disk import writing_to
from specdec.training.progress import Plan, Progress, Watch
from specdec.training.rollout import Rollout
from specdec.training.script import Script
from specdec.training.settings import HeadSettings, RolloutSettings
from specdec.training.text import Text

FILE = "text.npz"
_LONGEST_PROMPT = 512
_MEASURED_SECONDS = 5.0
_SECONDS_PER_SAVE = 300.0
_ROWS, _ROWS_ON_GPU = 128, 4096
_MOST_MEMORY = 0.6  # of a GPU's free memory
_MOST_BYTES = 2**31  # of keys and values on a CPU
_LEAST_SHARE = 0.05  # of the steps that write answers, below which something is wrong


def script_for(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]] | None) -> Script:
    """Return what surrounds the model's text: prompts, the chat template's open user turn, or nothing.

    Raises:
        RequestError: without a tokenizer, or if all prompts are too long.
        ModelError: for a model without a token that begins or ends a text.
    """
    if tokenizer is None:
        raise RequestError("training needs the model's tokenizer, and there is none: pass tokenizer=…")
    ends = _ends(model, tokenizer)
    if prompts is not None:
        return _prompted(prompts, _first(tokenizer, ends), ends)
    if getattr(tokenizer, "chat_template", None):
        with suppress(Exception):  # a template that needs more than a user's message
            script = Script.chat(tokenizer, ends)
            if script.prefix and script.bridge:
                return script
    return Script.continuation(_first(tokenizer, ends), ends)


def _ends(model: Any, tokenizer: Any) -> list[int]:
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    given = tokenizer.eos_token_id if given is None else given
    ends = [given] if isinstance(given, int) else list(given or ())
    if not ends:
        raise ModelError(f"{name_of(model)} has no token that ends a text: set its generation_config.eos_token_id")
    return ends


def _first(tokenizer: Any, ends: Sequence[int]) -> int:
    first = getattr(tokenizer, "bos_token_id", None)
    return int(ends[0] if first is None else first)


def _prompted(prompts: Sequence[Sequence[int]], first: int, ends: list[int]) -> Script:
    chosen = [list(prompt) for prompt in prompts if 2 <= len(prompt) <= _LONGEST_PROMPT]
    if not chosen:
        raise RequestError(f"no prompt has 2 to {_LONGEST_PROMPT} tokens: give others, or none")
    shared = _shared([prompt[:-1] for prompt in chosen])
    return Script(shared or [first], [prompt[len(shared) :] for prompt in chosen], None, [], ends)


def _shared(prompts: Sequence[list[int]]) -> list[int]:
    """Return the tokens that all prompts begin with."""
    low, high = min(prompts), max(prompts)
    size = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:size]


class OwnText:
    """The text of a folder.

    Args:
        folder: its folder, which exists.
        digest: of the model, which later runs compare.
        is_resumed: go on with the text that the folder has.

    Raises:
        RequestError: the folder has text and isn't resumed, or the text is another model's.
    """

    def __init__(self, folder: Path, digest: str, is_resumed: bool) -> None:
        self.path, self._facts = folder / FILE, folder / "text.json"
        self._digest = digest
        self.text = Text.of([], [])
        if not self.path.exists():
            return
        if not is_resumed:
            raise RequestError(f"{folder} has text of an earlier run: resume it (--resume), or give another folder")
        with suppress(OSError, ValueError):
            if json.loads(self._facts.read_text(encoding="utf-8"))["model"] == digest:
                self.text = Text.load(self.path)
                return
        raise RequestError(f"the text in {folder} was written by another model: give another folder")

    def extend(self, model: Any, script: Script, settings: HeadSettings, watch: Watch, ends_at: float) -> None:
        """Write until the share of the time for text is over; planned by the rate of the first seconds.

        Raises:
            ModelError: the model writes hardly anything, or its keys and values don't fit the memory.
            RequestError: the text can't be saved.
        """
        rollout_settings = _rollout_settings(model, script, settings)
        generator = torch.Generator(model.device).manual_seed(settings.seed + len(self.text))
        try:
            rollout = Rollout(model, script, rollout_settings, generator)
            writing = _Writing(self, rollout_settings, settings, watch, ends_at)
            try:
                rollout.write(2**62, math.inf, writing.goes_on)
            finally:
                self.save(rollout)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise ModelError(
                    f"{rollout_settings.num_rows} texts at once don't fit the memory: use a smaller num_rows"
                ) from error
            raise
        self.text = self._with(rollout)

    def _with(self, rollout: Rollout) -> Text:
        written = rollout.records.text()
        both = [self.text, written]
        documents = [each.document(index) for each in both for index in range(len(each))]
        return Text.of(documents, np.concatenate([each.answers for each in both]).tolist()).deduplicated()

    def save(self, rollout: Rollout) -> None:
        """Save the text, with what a rollout has added."""
        text = self._with(rollout)
        if not len(text):
            return
        with writing_to(self.path.parent):
            text.save(self.path)
            self._facts.write_text(json.dumps({"model": self._digest}) + "\n", encoding="utf-8")


class _Writing:
    """Decides whether a rollout goes on, plans, reports and saves."""

    def __init__(
        self, own: OwnText, rollout: RolloutSettings, settings: HeadSettings, watch: Watch, ends_at: float
    ) -> None:
        self._own, self._settings, self._rollout, self._watch, self._ends_at = own, settings, rollout, watch, ends_at
        self._began = self._saved = watch.clock()
        self._num_before = own.text.num_answer_tokens
        self._seconds, self._has_plan = 60 * settings.minutes * settings.text_share, False

    def goes_on(self, rollout: Rollout) -> bool:
        now, steps = self._watch.clock(), len(rollout.records.steps)
        if not steps:
            return True
        num_new, seconds = rollout.records.num_answer_tokens(), now - self._began
        self._check_answers(rollout, num_new, steps)
        if not self._has_plan and seconds >= min(_MEASURED_SECONDS, 3 * self._settings.minutes):
            self._plan(steps / max(seconds, 1e-9))
        if now - self._saved >= _SECONDS_PER_SAVE:
            self._own.save(rollout)
            self._saved = now
        rate = num_new / max(seconds, 1e-9)
        self._watch.on_progress(Progress("text", self._num_before + num_new, rate, self._ends_at - now))
        return seconds < self._seconds

    def _plan(self, steps_per_second: float) -> None:
        answer, (least, most) = self._rollout.answer_tokens, self._rollout.opening_tokens
        share = answer / (answer + (least + most) / 2)
        rate = steps_per_second * self._rollout.num_rows * share
        self._has_plan = True
        self._seconds = max(0.0, self._seconds - self._num_before / rate)  # what was written before counts
        num_wanted, minutes = self._num_before + int(rate * self._seconds), self._seconds / 60
        self._watch.on_plan(Plan(num_wanted, self._num_before, rate, minutes, self._settings.minutes - minutes))

    def _check_answers(self, rollout: Rollout, num_new: int, steps: int) -> None:
        settings = self._rollout
        if steps < 2 * (settings.opening_tokens[1] + settings.answer_tokens) or steps % 64:
            return
        if num_new < _LEAST_SHARE * steps * settings.num_rows:
            raise ModelError(
                f"{name_of(rollout.model)} ends nearly every text at once ({num_new} tokens of answers in {steps} "
                "steps): give prompts that it answers (--prompts)"
            )


def _rollout_settings(model: Any, script: Script, settings: HeadSettings) -> RolloutSettings:
    """Return the settings of the rollout, with as many rows as fit the memory."""
    is_prompted = not script.bridge and any(script.openings)
    others: dict[str, Any] = {"opening_tokens": (0, 0), "opening_temperature": 0.0, "greedy_share": 0.5}
    answer = settings.answer_tokens
    opening = (min(64, answer), min(64, answer))
    is_cuda = model.device.type == "cuda"
    num_rows = settings.num_rows or (_ROWS_ON_GPU if is_cuda else _ROWS)
    made = RolloutSettings(num_rows=num_rows, answer_tokens=answer, opening_tokens=opening)
    made = made.model_copy(update=others) if is_prompted else made
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_row = 2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize * made.num_slots(script)
    most = torch.cuda.mem_get_info(model.device)[0] * _MOST_MEMORY if is_cuda else _MOST_BYTES
    return made.model_copy(update={"num_rows": max(1, min(made.num_rows, int(most / per_row)))})
