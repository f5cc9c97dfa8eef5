"""The training of one head on a target's text, in a given time; the best head so far is in its folder."""

import shlex
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from specdec.errors import ModelError, plural
from specdec.heads.head_facts import HeadFacts, write_facts
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.checkpoint import Checkpoint
from specdec.heads.training.disk import PART, writing_to
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.loop import Trainer
from specdec.heads.training.packing import PackedRows, pack
from specdec.heads.training.place import Place
from specdec.heads.training.progress import Progress, Watch
from specdec.heads.training.run import Resumed, RunOutcome, TrainedHead
from specdec.heads.training.settings import HeadSettings, TrainingSettings
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText
from specdec.machine.cache_files import put_in_place
from specdec.models.architecture import name_of

_START_ROWS, _START_SHARE = 128, 0.3  # of the time for training, at most; training reads the same rows again
_MINUTES_PER_EVALUATION = 5.0
_RESERVE = 0.02  # of the time


_HELD_OUT_ROWS = 64


@dataclass(frozen=True, slots=True)
class SplitText:
    """Documents to train on and to evaluate on, the same ones when a run is resumed.

    Attributes:
        rows: packed, to train on.
        held_out: packed, to evaluate on.
    """

    rows: PackedRows
    held_out: PackedRows

    @classmethod
    def of(cls, text: TrainingText, settings: HeadSettings, rows_per_batch: int, writer: str) -> "SplitText":
        """Split and pack a text, without the documents whose answers begin after a row's end.

        Args:
            text: to split.
            settings: length of rows, share of held-out documents and seed.
            rows_per_batch: the fewest rows to train on.
            writer: the name of the model that wrote the text.

        Raises:
            ModelError: too little text.

        Warns:
            UserWarning: if documents are left out.
        """
        shuffle, length = np.random.default_rng(settings.seed), settings.row_length
        indices = np.arange(len(text))
        is_held_out = indices % settings.held_out_every == settings.held_out_every - 1
        is_long = text.answers >= length
        rows = pack(text.select(indices[~is_held_out & ~is_long]), length, shuffle)
        held_out = pack(text.select(indices[is_held_out & ~is_long]), length, shuffle)[:_HELD_OUT_ROWS]
        if len(rows) < rows_per_batch or not len(held_out):
            left_out = f", {is_long.sum()} after prompts of {length} tokens or more, which are left out"
            raise ModelError(
                f"{writer} wrote {plural(len(text), 'different text')} of {text.num_answer_tokens:,} tokens"
                f"{left_out if is_long.any() else ''}, too little to train on: allow more minutes, or give "
                f"{'shorter ' if is_long.any() else ''}prompts that it answers (--prompts)"
            )
        if is_long.any():
            of_them = f"{is_long.sum()} of {plural(len(text), 'written text')}"
            warnings.warn(f"{of_them} left out: their prompts have {length} tokens or more", stacklevel=2)
        return cls(rows, held_out)


def head_card(
    training: Eagle3Training, text: TrainingText, run: RunOutcome, found: Acceptance, place: Place, seed: int
) -> str:
    """Return the card of a head.

    Args:
        training: has the head.
        text: all that the target wrote.
        run: the training up to this head.
        found: the head's acceptance on held-out text.
        place: the head's folder.
        seed: of all randomness.
    """
    model = training.model
    name = str(getattr(model, "name_or_path", "") or name_of(model))
    accuracy = ", ".join(f"{share:.3f}" for share in found.accuracy)
    chain = ", ".join(f"{share:.3f}" for share in found.chain)
    steps = f"{found.tokens_per_step:.2f} ({found.num_positions:,} positions)"
    return f"""# An EAGLE-3 head for {name}

Trained by `specdec train head` on text that the model wrote itself, in the published layout (bfloat16).

| | |
|---|---|
| model | {name}, digest `{place.digest or "unknown"}` |
| text | {text.num_answer_tokens:,} answer tokens in {len(text):,} documents |
| training | {run.num_answer_tokens:,} answer tokens with repetitions, {run.seconds / 60:.3g} minutes, seed {seed} |
| draft vocabulary | {len(training.head.target_ids):,} tokens |
| held-out text, right after the true text, by depth | {accuracy} |
| held-out text, accepted with all before, by depth | {chain} |
| tokens per step, chain of {len(found.chain)}, held-out text | {steps} |

```sh
specdec generate --model MODEL --proposer {shlex.quote(f"eagle3:head={place.folder}")} "…"
```

Held-out text is the model's own, on which heads are right more often than on prompts of users.
"""


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
        self, training: Eagle3Training, text: TrainingText, settings: HeadSettings, watch: Watch, place: Place
    ) -> None:
        self.training, self.model, self.text = training, training.model, text
        self.settings, self.watch, self.place = settings, watch, place
        chosen = self._training_settings()
        split = SplitText.of(text, settings, chosen.rows_per_batch, name_of(self.model))
        self.rows = split.rows
        target = TargetStates(self.model, training.layer_ids)
        self.trainer = Trainer(training, target, split.held_out, chosen, watch.clock)
        self.best: Acceptance | None = None
        self.seen = RunOutcome()

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
        ends_at = began + 60 * self.settings.minutes - self.settings.reserved_seconds
        reserve = 60 * _RESERVE * self.settings.minutes
        folder, is_interrupted = self.place.folder, False
        try:
            if checkpoint is None:
                generator = torch.Generator(self.training.device).manual_seed(self.settings.seed)
                self._start(generator, ends_at)
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

    def _start(self, generator: torch.Generator, ends_at: float) -> None:
        """Begin the head by least squares, on as much text as a share of the time until ``ends_at`` allows."""
        began = self.watch.clock()

        def goes_on(num_read: int) -> bool:
            now = self.watch.clock()
            self.watch.on_progress(Progress("least-squares start", num_read, 0.0, ends_at - now))
            return now - began < _START_SHARE * (ends_at - began)

        self.trainer.start(self.rows[:_START_ROWS], generator, goes_on)

    def _watching(self, ends_at: float) -> Callable[[RunOutcome], None]:
        """Return a function that keeps the best head of a run and reports progress."""
        num_seen = 0

        def watch(run: RunOutcome) -> None:
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

    def _write(self, run: RunOutcome, found: Acceptance) -> None:
        """Write the head and its card; the files of the head before are replaced one by one, each as a whole."""
        folder = self.place.folder
        card = head_card(self.training, self.text, run, found, self.place, self.settings.seed)
        with writing_to(folder), TemporaryDirectory(prefix=PART, dir=folder) as name:
            part = Path(name)
            self.training.write(part)
            (part / "README.md").write_text(card, encoding="utf-8")
            write_facts(folder, self._facts(found))
            for file in ("model.safetensors", "README.md", "config.json"):  # readers look for the last
                put_in_place(part / file, folder / file)

    def _facts(self, found: Acceptance) -> HeadFacts:
        name = str(getattr(self.model, "name_or_path", "") or name_of(self.model))
        num_tokens = self.text.num_answer_tokens
        return HeadFacts(model=name, num_answer_tokens=num_tokens, tokens_per_step=found.tokens_per_step)
