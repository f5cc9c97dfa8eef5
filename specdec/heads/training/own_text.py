"""The target's own text in a folder, which grows until there is enough, and which a later run goes on with."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, RequestError
from specdec.heads.training.disk import TEXT, check_resumed, writing_to
from specdec.heads.training.faster_copy import faster_copy
from specdec.heads.training.memory import MemoryExhaustedError, within_memory
from specdec.heads.training.place import Place, differences, run_identity
from specdec.heads.training.progress import Plan, Progress, Watch
from specdec.heads.training.rollout import Rollout
from specdec.heads.training.script import Script
from specdec.heads.training.settings import HeadSettings, RolloutSettings
from specdec.heads.training.text import TrainingText
from specdec.machine.cache_files import replace_file
from specdec.models.architecture import name_of
from specdec.sampling.randomness import seed_of_sample

_MEASURED_SECONDS = 5.0
_SECONDS_PER_SAVE, _FEWEST_SAVES = 120.0, 6
_ROWS, _ROWS_ON_GPU = 128, 4096
_MOST_MEMORY = 0.6  # of a GPU's free memory
_MOST_BYTES = 2**31  # of keys and values on a CPU
_LEAST_SHARE = 0.05  # of the steps that write answers, below which something is wrong
_FEWEST_ROWS = 4  # below which less memory doesn't help
_REMEDY = "free memory, or load the model in bfloat16"


class OwnText:
    """The text of a folder, and the time spent by the run that writes it.

    Args:
        place: its folder, and the digest of the model.
        model: the target.
        script: the tokens around what it writes.
        settings: of the run.
        is_resumed: go on with the text that the folder has.

    Attributes:
        text: all that is written.
        seconds: time spent by an unfinished run that is the same as this one, which goes on with it; else 0. At most
            the share of the time for text.
        num_at_begin: answer tokens that were written before the run began; they count as written in its time.

    Raises:
        RequestError: the folder has text and isn't resumed, or has none and is, or the text is another model's.
    """

    def __init__(self, place: Place, model: Any, script: Script, settings: HeadSettings, is_resumed: bool) -> None:
        folder, self.model, self.script, self.settings = place.folder, model, script, settings
        self.path, self._facts = folder / TEXT, folder / "text.json"
        self._run = run_identity(place.digest, model, script, settings)
        self.text, self.seconds, self.num_at_begin = TrainingText.of([], []), 0.0, 0
        self._other = dict[str, Any]()  # facts of an unfinished run that isn't this one
        check_resumed(folder, is_resumed)
        if not is_resumed:
            return
        facts = self._read_facts()
        if facts.get("model") != place.digest:
            raise RequestError(f"the text in {folder} was written by another model: give another folder (--out)")
        self.text, seconds = TrainingText.load(self.path), float(facts.get("seconds", 0.0))
        self.num_at_begin = self.text.num_answer_tokens
        if seconds and self._is_of(facts):
            # If it was paused while it wrote, the training has its share of the time all the same.
            self.seconds, self.num_at_begin = min(seconds, settings.text_seconds), int(facts.get("num_at_begin", 0))
        elif seconds:
            self._other = facts

    def check_training(self, checkpoint: Path) -> None:
        """Refuse to begin a new training where another one was interrupted, whose state ``checkpoint`` would have.

        Raises:
            RequestError: one was; with what to give to go on with it.
        """
        if not self._other or not checkpoint.exists():
            return
        folder = checkpoint.parent
        others = ", ".join(differences(self._other, self._run))
        raise RequestError(
            f"{folder} has an interrupted training with other options: go on with it by {others}, or remove "
            f"{checkpoint} to begin a new training on its text"
        )

    def _is_of(self, facts: Mapping[str, Any]) -> bool:
        """Return True if the folder's facts are this run's."""
        return all(facts.get(name) == value for name, value in self._run.items())

    def _read_facts(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
            if isinstance(facts, dict):
                (facts.get("settings") or {}).pop("kind", None)  # of runs that could train other kinds of heads
                return facts
        return {}

    def extend(self, watch: Watch, began: float) -> None:
        """Write until the share of the time for text is over; planned by the rate of the first seconds.

        If memory runs out, half as many documents are written side by side from there on.

        Args:
            watch: receives plan and progress.
            began: the watch's time at which the run began, or would have begun if it hadn't been interrupted.

        Raises:
            ModelError: the model writes hardly anything, or its keys and values don't fit the memory.
            RequestError: the text can't be saved.
        """
        if self.seconds and self.settings.text_seconds <= self.seconds:
            seconds = 60 * self.settings.minutes - self.settings.reserved_seconds - (watch.clock() - began)
            watch.on_plan(self.plan_without_text(seconds / 60))
            return
        with within_memory(f"the copy that writes text doesn't fit: {_REMEDY}"):
            model = faster_copy(self.model)
        rollout = _rollout_settings(model, self.script, self.settings)
        while True:
            try:
                self._write(model, rollout, watch, began)
                break
            except MemoryExhaustedError:
                if rollout.num_rows <= _FEWEST_ROWS:
                    raise
            rollout = rollout.model_copy(update={"num_rows": rollout.num_rows // 2})
            self.seconds = watch.clock() - began
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()  # of the rollout's keys and values

    def plan_without_text(self, minutes: float) -> Plan:
        """Return the plan of a run whose text is complete, and which trains for ``minutes``."""
        num_written, left = self.text.num_answer_tokens, max(0.0, minutes)
        return Plan(num_written, num_written, 0.0, 0.0, left, self.script.description, self.settings.has_training)

    def _write(self, model: Any, settings: RolloutSettings, watch: Watch, began: float) -> None:
        """Write with one rollout of ``model``; what it has written is saved in any case.

        Raises:
            MemoryExhaustedError: memory ran out; the text so far is in ``text``.
        """
        written = len(self.text) + len(self.text.tokens)  # or a resumed run would repeat itself
        seed = seed_of_sample(self.settings.seed, written)
        generator = torch.Generator(model.device).manual_seed(seed)
        with within_memory(f"{settings.num_rows} texts at once don't fit: {_REMEDY}"):
            rollout = Rollout(model, self.script, settings, generator)
        writing = _Writing(self, settings, watch, began)
        is_complete = False
        with within_memory(f"what the model has written is kept: {_REMEDY}, and go on (--resume, if text was saved)"):
            try:
                rollout.write(writing.goes_on)
                is_complete = True
            finally:
                self.text = self.save(rollout, watch.clock() - began, is_complete)

    def _with(self, rollout: Rollout) -> TrainingText:
        written = rollout.records.text()
        both = [self.text, written]
        documents = [each.document(index) for each in both for index in range(len(each))]
        return TrainingText.of(documents, np.concatenate([each.answers for each in both]).tolist()).deduplicated()

    def save(self, rollout: Rollout, seconds: float, is_complete: bool = False) -> TrainingText:
        """Save the text, with what a rollout has added, and the time that the run has spent; return this text.

        Unless the text is complete, time for tokens that it leaves out doesn't count, as a resumed run writes others.
        """
        text = self._with(rollout)
        if not len(text):
            return text
        if not self._is_of(self._read_facts()):
            self.note(0.0)  # text without the model's digest would belong to nobody
        with writing_to(self.path.parent):
            text.save(self.path)
        lost = 0.0 if is_complete else rollout.records.mean_lost_steps() / max(1, len(rollout.records.steps))
        self.note(seconds - lost * (seconds - self.seconds))
        return text

    def note(self, seconds: float) -> None:
        """Save the time spent; 0 when the run has ended."""
        facts = json.dumps(self._run | {"seconds": seconds, "num_at_begin": self.num_at_begin}) + "\n"
        with writing_to(self.path.parent):
            replace_file(self._facts, lambda file: file.write(facts.encode()))


class _Writing:
    """Decides whether a rollout goes on, plans, reports and saves."""

    def __init__(self, own: OwnText, rollout: RolloutSettings, watch: Watch, run_began: float) -> None:
        self._own, self._rollout, self._watch, self._run_began = own, rollout, watch, run_began
        self._settings = settings = own.settings
        self._began = self._first_step = self._saved = watch.clock()
        self._num_before = own.text.num_answer_tokens
        self._seconds, self._has_plan = settings.text_seconds - own.seconds, False

    def goes_on(self, rollout: Rollout) -> bool:
        now, steps = self._watch.clock(), len(rollout.records.steps)
        if not steps:
            self._first_step = now  # the prefix is in the cache: its passes have warmed the model up
            return True
        num_new, seconds = rollout.records.num_answer_tokens(), now - self._began
        self._check_answers(rollout, num_new, steps)
        measured = now - self._first_step
        if not self._has_plan and measured >= min(_MEASURED_SECONDS, 3 * self._settings.minutes):
            self._plan(rollout, steps / max(measured, 1e-9))
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
        self._seconds = max(0.0, self._seconds - self._own.num_at_begin / rate)
        seconds = max(0.0, self._seconds - (self._first_step - self._began))
        num_wanted = self._num_before + self._num_answer_tokens(steps_per_second * seconds)
        text_minutes, spent = self._seconds / 60, (self._began - self._run_began) / 60
        whole = self._settings.minutes - self._settings.reserved_seconds / 60
        minutes = max(0.0, whole - spent - text_minutes)
        source, has_training = rollout.script.description, self._settings.has_training
        self._watch.on_plan(Plan(num_wanted, self._num_before, rate, text_minutes, minutes, source, has_training))

    def _num_answer_tokens(self, num_steps: float) -> int:
        """Return the number of answer tokens written in ``num_steps``, if all openings and answers have full length."""
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
    if settings.greedy_share is not None:
        made = made.model_copy(update={"greedy_share": settings.greedy_share})
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_row = 2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize * made.num_slots(script)
    most = torch.cuda.mem_get_info(model.device)[0] * _MOST_MEMORY if is_cuda else _MOST_BYTES
    return made.model_copy(update={"num_rows": max(1, min(made.num_rows, int(most / per_row)))})
