"""The target's own text in a folder, which grows until there is enough, and which a later run goes on with."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, RequestError
from specdec.machine.cache_files import replace_file
from specdec.models.architecture import name_of
from specdec.training.disk import writing_to
from specdec.training.memory import MemoryExhaustedError, within_memory
from specdec.training.progress import Plan, Progress, Watch
from specdec.training.rollout import Rollout
from specdec.training.script import Script
from specdec.training.settings import HeadSettings, RolloutSettings
from specdec.training.text import Text

FILE = "text.npz"
_LONGEST_PROMPT = 512
_MEASURED_SECONDS = 5.0
_SECONDS_PER_SAVE, _FEWEST_SAVES = 120.0, 6
_ROWS, _ROWS_ON_GPU = 128, 4096
_MOST_MEMORY = 0.6  # of a GPU's free memory
_MOST_BYTES = 2**31  # of keys and values on a CPU
_LEAST_SHARE = 0.05  # of the steps that write answers, below which something is wrong
_FEWEST_ROWS = 4  # below which less memory doesn't help


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
    """The text of a folder, and the time spent by the run that writes it.

    Args:
        folder: its folder, which exists.
        digest: of the model, which later runs compare.
        settings: of the run.
        is_resumed: go on with the text that the folder has.

    Attributes:
        text: all that is written.
        seconds: time spent by an unfinished run with the same settings, which this one goes on with; else 0.

    Raises:
        RequestError: the folder has text and isn't resumed, or the text is another model's.
    """

    def __init__(self, folder: Path, digest: str, settings: HeadSettings, is_resumed: bool) -> None:
        self.path, self._facts = folder / FILE, folder / "text.json"
        self._run = {"model": digest, "settings": settings.model_dump(mode="json")}
        self.text, self.seconds = Text.of([], []), 0.0
        if not self.path.exists():
            return
        if not is_resumed:
            raise RequestError(f"{folder} has text of an earlier run: resume it (--resume), or give another folder")
        facts = self._read_facts()
        if facts.get("model") != digest:
            raise RequestError(f"the text in {folder} was written by another model: give another folder (--out)")
        self.text = Text.load(self.path)
        if facts.get("settings") == self._run["settings"]:
            self.seconds = float(facts.get("seconds", 0.0))

    def _read_facts(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
            return facts if isinstance(facts, dict) else {}
        return {}

    def extend(self, model: Any, script: Script, settings: HeadSettings, watch: Watch, began: float) -> None:
        """Write until the share of the time for text is over; planned by the rate of the first seconds.

        Args:
            model: the target.
            script: the tokens around what it writes.
            settings: of the run.
            watch: receives plan and progress.
            began: the watch's time at which the run began, or would have begun if it hadn't been interrupted.

        Raises:
            ModelError: the model writes hardly anything, or its keys and values don't fit the memory.
            RequestError: the text can't be saved.
        """
        left = settings.text_seconds - self.seconds
        if self.seconds and left <= 0:
            minutes = (60 * settings.minutes - self.seconds) / 60
            num_written = self.text.num_answer_tokens
            watch.on_plan(Plan(num_written, num_written, 0.0, 0.0, minutes, script.description))
            return
        rollout_settings = _rollout_settings(model, script, settings)
        while True:
            try:
                rollout = self._rollout(model, script, rollout_settings, settings.seed)
                break
            except MemoryExhaustedError:
                if rollout_settings.num_rows <= _FEWEST_ROWS:
                    raise
                rollout_settings = rollout_settings.model_copy(update={"num_rows": rollout_settings.num_rows // 2})
        writing = _Writing(self, rollout_settings, settings, watch, began)
        with within_memory("what the model has written is kept; go on with it (--resume) with more free memory"):
            try:
                rollout.write(2**62, math.inf, writing.goes_on)
            finally:
                self.save(rollout, watch.clock() - began)
            self.text = self._with(rollout)

    def _rollout(self, model: Any, script: Script, settings: RolloutSettings, seed: int) -> Rollout:
        generator = torch.Generator(model.device).manual_seed(seed + len(self.text))
        with within_memory(f"{settings.num_rows} texts at once don't fit"):
            return Rollout(model, script, settings, generator)

    def _with(self, rollout: Rollout) -> Text:
        written = rollout.records.text()
        both = [self.text, written]
        documents = [each.document(index) for each in both for index in range(len(each))]
        return Text.of(documents, np.concatenate([each.answers for each in both]).tolist()).deduplicated()

    def save(self, rollout: Rollout, seconds: float) -> None:
        """Save the text, with what a rollout has added, and the time that the run has spent."""
        text = self._with(rollout)
        if not len(text):
            return
        if self._read_facts().get("settings") != self._run["settings"]:
            self.note(0.0)  # text without the model's digest would belong to nobody
        with writing_to(self.path.parent):
            text.save(self.path)
        self.note(seconds)

    def note(self, seconds: float) -> None:
        """Save the time spent; 0 when the run has ended."""
        facts = json.dumps(self._run | {"seconds": seconds}) + "\n"
        with writing_to(self.path.parent):
            replace_file(self._facts, lambda file: file.write(facts.encode()))


class _Writing:
    """Decides whether a rollout goes on, plans, reports and saves."""

    def __init__(
        self, own: OwnText, rollout: RolloutSettings, settings: HeadSettings, watch: Watch, run_began: float
    ) -> None:
        self._own, self._settings, self._rollout, self._watch, self._run_began = (
            own,
            settings,
            rollout,
            watch,
            run_began,
        )
        self._began = self._saved = watch.clock()
        self._num_before = own.text.num_answer_tokens
        self._seconds, self._has_plan = settings.text_seconds - own.seconds, False

    def goes_on(self, rollout: Rollout) -> bool:
        now, steps = self._watch.clock(), len(rollout.records.steps)
        if not steps:
            return True
        num_new, seconds = rollout.records.num_answer_tokens(), now - self._began
        self._check_answers(rollout, num_new, steps)
        if not self._has_plan and seconds >= min(_MEASURED_SECONDS, 3 * self._settings.minutes):
            self._plan(rollout, steps / max(seconds, 1e-9))
        if now - self._saved >= min(_SECONDS_PER_SAVE, self._settings.text_seconds / _FEWEST_SAVES):
            self._own.save(rollout, now - self._run_began)
            self._saved = now
        rate = num_new / max(seconds, 1e-9)
        left = self._run_began + 60 * self._settings.minutes - now
        self._watch.on_progress(Progress("text", self._num_before + num_new, rate, left))
        return seconds < self._seconds

    def _plan(self, rollout: Rollout, steps_per_second: float) -> None:
        cycle = self._rollout.answer_tokens + sum(self._rollout.opening_tokens) / 2
        rate = steps_per_second * self._rollout.num_rows * self._rollout.answer_tokens / cycle
        self._has_plan = True
        if not self._own.seconds:  # what was written by an ended run counts
            self._seconds = max(0.0, self._seconds - self._num_before / rate)
        num_wanted = self._num_before + self._num_answer_tokens(steps_per_second * self._seconds)
        text_minutes, minutes = self._seconds / 60, self._settings.minutes - self._own.seconds / 60
        source = rollout.script.description
        self._watch.on_plan(Plan(num_wanted, self._num_before, rate, text_minutes, minutes - text_minutes, source))

    def _num_answer_tokens(self, num_steps: float) -> int:
        """Return how many tokens of answers so many steps write, if all openings and answers have full length."""
        opening, answer = sum(self._rollout.opening_tokens) / 2, self._rollout.answer_tokens
        cycles, rest = divmod(num_steps, opening + answer)
        return int(self._rollout.num_rows * (cycles * answer + max(0.0, rest - opening)))

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
