"""The tuning of one model on its own text, in a given time; the best model so far is in its folder."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter

from specdec.errors import is_out_of_memory
from specdec.machine.cache_files import put_in_place, replace_file
from specdec.models.architecture import name_of
from specdec.training.card import tuned_model_card
from specdec.training.checkpoint import UNREADABLE, read_state, write_state
from specdec.training.consistency_evaluation import evaluate
from specdec.training.disk import PART, writing_to
from specdec.training.place import CONFIG, Place
from specdec.training.progress import Progress, Watch
from specdec.training.settings import ConsistencySettings
from specdec.training.split import SplitText
from specdec.training.text import Text
from specdec.training.tuned_model import ConsistencyRun, JacobiEvaluation, NoBetterModelError, TunedModel
from specdec.training.tuner import Tuner

RECORD = "training.json"  # the folder's file with the last training's losses and evaluations
_FEWEST_EVALUATIONS = 6
_RESERVE = 0.02  # of the time
_UPDATES_PER_LOSS = 10


class ConsistencyTraining:
    """The tuning of one model in the time that is left.

    Args:
        model: the original, which is left as it is.
        tokenizer: its tokenizer, which is saved with the new model.
        text: that it wrote greedily.
        ends: tokens that end a text.
        settings: of the training.
        watch: receives the progress.
        place: the folder, and the digest of the model.

    Raises:
        ModelError: too little text.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        text: Text,
        ends: Sequence[int],
        settings: ConsistencySettings,
        watch: Watch,
        place: Place,
    ) -> None:
        self.original, self.tokenizer, self.text, self.ends = model, tokenizer, text, ends
        self.settings, self.watch, self.place = settings, watch, place
        self._batch = settings.rows_per_batch or (16 if model.device.type == "cuda" else 2)
        self._split = SplitText.of(text, settings, self._batch, name_of(model))
        self._tuner = Tuner(model, ends, settings)
        self._tuned = copy.deepcopy(model)  # in the original's dtype, for evaluations and the folder
        self.run, self.best = ConsistencyRun(), JacobiEvaluation(0.0, 0.0, 0)
        self._seconds = 0.0  # planned for the training

    def go(self) -> bool:
        """Train until the time is over; the folder has the best model so far from the first that is better on.

        Returns:
            True if Ctrl-C ended the training.

        Raises:
            KeyboardInterrupt: before there is a better model.
        """
        try:
            self._train()
        except KeyboardInterrupt:
            if not self._has_better:
                raise
            return True
        return False

    def result(self, is_interrupted: bool) -> TunedModel:
        """Return the best model and its figures.

        Raises:
            NoBetterModelError: no model was better than the original.
        """
        before = self.run.evaluations[0][1]
        if not self._has_better:
            raise NoBetterModelError(self._comparison(before), self.run)
        num_tokens = self.text.num_answer_tokens
        return TunedModel(self.place.folder, before, self.best, num_tokens, is_interrupted, self.run)

    def _comparison(self, before: JacobiEvaluation) -> str:
        """Return how close the training came to a better model, and what to change."""
        closest, named = self.run.closest, "the evaluation with most tokens per step"
        remedy = "with more minutes, another learning rate (--learning-rate) or weight of the text's loss (--ar-weight)"
        if closest.tokens_per_step > before.tokens_per_step:
            named = "of the evaluations with more tokens per step, the one with the least loss"
            remedy += ", or allow a higher loss (--max-loss-increase)"
        return (
            f"no model was better than {before.tokens_per_step:.2f} tokens per step at a loss of at most "
            f"{before.loss + self.settings.max_loss_increase:.3f}; {named} had "
            f"{closest}, and {self.place.folder / RECORD} has them all: begin a new training on the folder's text "
            f"(--resume) {remedy}"
        )

    @property
    def _has_better(self) -> bool:
        return bool(self.run.best) or self.run.previous is not None

    @property
    def seconds_left(self) -> float:
        """The time planned for the rest of the training."""
        return self._seconds - self.run.seconds

    def begin(self, began: float) -> None:
        """Evaluate the original, and the model of an earlier run, which only a better one replaces.

        Args:
            began: the watch's time at which the whole run began.
        """
        started = self.watch.clock()
        self.best = self._evaluate(self.original)
        self.run.evaluations.append((0, self.best))
        reserve = self.watch.clock() - started + 60 * _RESERVE * self.settings.minutes
        if (earlier := self._earlier()) is not None:
            found = self._evaluate(earlier)
            if self._is_better(found):
                self.run.previous = self.best = found
        self._seconds = max(began + 60 * self.settings.minutes - reserve - self.watch.clock(), 1e-3)

    def _earlier(self) -> Any:
        """Return the model of an earlier run in the folder; None if there is none, or it is damaged."""
        folder, original = self.place.folder, self.original
        if not (folder / CONFIG).exists():
            return None
        try:
            return type(original).from_pretrained(folder, dtype=original.dtype).to(original.device).eval()
        except (*UNREADABLE, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            return None

    def resume(self) -> bool:
        """Go on from the folder's checkpoint; return False if there is none for this text."""
        try:
            facts, tensors = read_state(self.place.folder)
            if facts["num_documents"] != len(self.text):
                return False
            run = TypeAdapter(ConsistencyRun).validate_python(facts["run"])
            self._tuner.restore(tensors)
        except UNREADABLE:
            return False
        self.run, self._seconds = run, facts["seconds"]
        evaluations = dict(run.evaluations)
        self.best = evaluations[run.best] if run.best or run.previous is None else run.previous
        return True

    def _train(self) -> None:
        run, settings, all_rows = self.run, self.settings, self._split.rows
        size, began = self._batch, self.watch.clock() - self.run.seconds
        count = max(_FEWEST_EVALUATIONS, round(self._seconds / 60 / settings.minutes_per_evaluation))
        done = run.seconds / self._seconds
        due = [share / count for share in range(1, count + 1) if share / count > done]
        self._report(began + self._seconds)
        while due:
            first = run.num_updates % (len(all_rows) // size) * size
            rows = all_rows[first : first + size]
            found = self._tuner.update(rows, run.num_updates, done)
            if run.num_updates % _UPDATES_PER_LOSS == 0:
                run.losses.append((run.num_updates, found[0].item(), found[1].item()))
            run.num_updates += 1
            run.num_answer_tokens += rows.num_answer_tokens
            run.seconds = self.watch.clock() - began
            done = min(1.0, run.seconds / self._seconds)
            if done >= due[0]:
                due = [share for share in due if share > done]
                self._keep_if_better()
                self._save()
            self._report(began + self._seconds)

    def _report(self, ends_at: float) -> None:
        run = self.run
        rate, left = run.num_answer_tokens / max(run.seconds, 1e-9), ends_at - self.watch.clock()
        last = str(run.evaluations[-1][1])
        self.watch.on_progress(Progress("training", run.num_answer_tokens, rate, left, self.best.tokens_per_step, last))

    def _evaluate(self, model: Any) -> JacobiEvaluation:
        return evaluate(model, self._split.held_out, self._split.held_out_rows, self.ends, self.settings)

    def _is_better(self, found: JacobiEvaluation) -> bool:
        most = self.run.evaluations[0][1].loss + self.settings.max_loss_increase
        return found.tokens_per_step > self.best.tokens_per_step and found.loss <= most

    def _keep_if_better(self) -> None:
        self._tuner.copy_to(self._tuned)
        found = self._evaluate(self._tuned)
        self.run.evaluations.append((self.run.num_updates, found))
        if self._is_better(found):
            self._write(found)
            self.run.best, self.best = self.run.num_updates, found

    def _save(self) -> None:
        facts = {"num_documents": len(self.text), "seconds": self._seconds, "run": asdict(self.run)}
        record = json.dumps(asdict(self.run), indent=1) + "\n"
        with writing_to(self.place.folder):
            write_state(self.place.folder, facts, self._tuner.state())
            replace_file(self.place.folder / RECORD, lambda file: file.write(record.encode()))

    def _write(self, found: JacobiEvaluation) -> None:
        """Write the model and its card; the files of the model before are replaced one by one, each as a whole."""
        folder = self.place.folder
        num_tokens = self.text.num_answer_tokens
        card = tuned_model_card(self.original, self.place, num_tokens, self.run, found, self.settings)
        with writing_to(folder), TemporaryDirectory(prefix=PART, dir=folder) as name:
            part = Path(name)
            self._tuned.save_pretrained(part)
            self.tokenizer.save_pretrained(part)
            (part / "README.md").write_text(card, encoding="utf-8")
            for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):  # readers look for it
                put_in_place(file, folder / file.name)
