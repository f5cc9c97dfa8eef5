"""The training of one head on a target's text, in a given time; the best head so far is in its folder."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from specdec.errors import ModelError
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.card import head_card
from specdec.heads.training.checkpoint import Checkpoint
from specdec.heads.training.disk import PART, writing_to
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.loop import Trainer
from specdec.heads.training.place import Place
from specdec.heads.training.progress import Progress, Watch
from specdec.heads.training.run import Resumed, Run, TrainedHead
from specdec.heads.training.settings import HeadSettings, TrainingSettings
from specdec.heads.training.split import SplitText
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import Text
from specdec.machine.cache_files import put_in_place
from specdec.models.architecture import name_of

_START_ROWS = 128
_MINUTES_PER_EVALUATION = 5.0
_RESERVE = 0.02  # of the time


class TimedTraining:
    """The training of one head in the time that is left.

    Args:
        training: the head, on the target's device.
        text: to train on and to evaluate on.
        settings: time, sizes and seed.
        watch: receives the progress.
        place: the head's folder.
    """

    def __init__(
        self, training: Eagle3Training, text: Text, settings: HeadSettings, watch: Watch, place: Place
    ) -> None:
        self.training, self.model, self.text = training, training.model, text
        self.settings, self.watch, self.place = settings, watch, place
        chosen = self._training_settings()
        split = SplitText.of(text, settings, chosen.rows_per_batch, name_of(self.model))
        self.rows = split.rows
        target = TargetStates(self.model, training.layer_ids)
        self.trainer = Trainer(training, target, split.held_out, chosen, watch.clock)
        self.best: Acceptance | None = None
        self.seen = Run()

    def _training_settings(self) -> TrainingSettings:
        minutes = self.settings.minutes * (1 - self.settings.text_share)
        evaluations = max(4, round(minutes / _MINUTES_PER_EVALUATION))
        is_cuda = self.model.device.type == "cuda"
        return TrainingSettings(
            rows_per_batch=4 if is_cuda else 2,
            rows_per_target_pass=64 if is_cuda else 8,
            rate=2.0 if is_cuda else 1.0,  # by the batch
            evaluations=evaluations,
            evaluated_from=0.0,
        )

    def run(self, began: float, checkpoint: Checkpoint | None) -> TrainedHead:
        """Train until the time is over; the folder always has the best head so far.

        Args:
            began: the watch's time at which the run began.
            checkpoint: go on from there; None begins the training.
        """
        ends_at, reserve = began + 60 * self.settings.minutes, 60 * _RESERVE * self.settings.minutes
        folder, is_interrupted = self.place.folder, False
        try:
            if checkpoint is None:
                generator = torch.Generator(self.training.device).manual_seed(self.settings.seed)
                self.trainer.start(self.rows[:_START_ROWS], generator)
                self.best = self._measured_before(folder)
                seconds = max(ends_at - reserve - self.watch.clock(), 1e-3)
            else:
                self.best, seconds = checkpoint.best, checkpoint.seconds
                ends_at = self.watch.clock() + seconds - checkpoint.resumed.run.seconds + reserve

            def save(state: Resumed) -> None:
                with writing_to(folder):
                    Checkpoint(len(self.text), seconds, self.best, state).save(folder)

            resumed = checkpoint.resumed if checkpoint else None
            self.trainer.train(self.rows, seconds, self._watching(ends_at), save, resumed)
        except KeyboardInterrupt:
            if self.best is None:
                raise
            is_interrupted = True
        assert self.best is not None, "the start is evaluated"
        num_tokens = self.text.num_answer_tokens
        return TrainedHead(folder, self.place.digest, self.best, num_tokens, is_interrupted, self.seen)

    def _watching(self, ends_at: float) -> Callable[[Run], None]:
        """Return a function that keeps the best head of a run and reports progress."""
        num_seen = 0

        def watch(run: Run) -> None:
            nonlocal num_seen
            self.seen = run
            if len(run.evaluations) > num_seen:
                num_seen = len(run.evaluations)
                update, found = run.evaluations[-1]
                if update == run.best and (self.best is None or found.tokens_per_step > self.best.tokens_per_step):
                    self._write(run, found)
                    self.best = found
            rate, best = run.num_answer_tokens / max(run.seconds, 1e-9), self.best
            left, length = ends_at - self.watch.clock(), best.tokens_per_step if best else 0.0
            self.watch.on_progress(Progress("training", run.num_answer_tokens, rate, left, length))

        return watch

    def _measured_before(self, folder: Path) -> Acceptance | None:
        """Measure the head of an earlier run, which only a better one replaces; None if there is none."""
        with suppress(ModelError):
            return self.trainer.evaluate(Eagle3Training.from_folder(self.model, folder))
        return None

    def _write(self, run: Run, found: Acceptance) -> None:
        """Write the head and its card; the files of the head before are replaced one by one, each as a whole."""
        folder = self.place.folder
        card = head_card(self.training, self.text, run, found, self.place, self.settings.seed)
        with writing_to(folder), TemporaryDirectory(prefix=PART, dir=folder) as name:
            part = Path(name)
            self.training.write(part)
            (part / "README.md").write_text(card, encoding="utf-8")
            for file in ("model.safetensors", "README.md", "config.json"):  # readers look for the last
                put_in_place(part / file, folder / file)
