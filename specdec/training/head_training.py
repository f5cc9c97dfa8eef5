"""A draft head from nothing but its target, in a given time: the target writes text, and the head learns from it."""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, RequestError, plural
from specdec.heads.config import Eagle3Config
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.files import TargetWeights
from specdec.heads.folder import read_head, write_head
from specdec.heads.made_here import folder_for, model_digest
from specdec.models.architecture import name_of
from specdec.models.fused_attention import without_cudnn
from specdec.training.acceptance import Acceptance
from specdec.training.card import Card, card
from specdec.training.checkpoint import Checkpoint, remove_checkpoint
from specdec.training.disk import prepare_folder, writing_to
from specdec.training.loop import Trainer
from specdec.training.memory import within_memory
from specdec.training.own_text import OwnText, script_for
from specdec.training.packing import PackedRows, pack
from specdec.training.progress import Progress, Watch
from specdec.training.run import Resumed, Run
from specdec.training.script import Script
from specdec.training.settings import HeadSettings, TrainingSettings
from specdec.training.sizes import eagle3_config
from specdec.training.target import TargetStates
from specdec.training.text import Text
from specdec.training.vocabulary import draft_vocabulary

_START_ROWS = 128
_HELD_OUT_ROWS = 64
_MINUTES_PER_EVALUATION = 5.0
_RESERVE = 0.02  # of the time


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a head, and the digest of its model."""

    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The result of ``train_head``.

    Attributes:
        folder: the head's folder, for ``eagle3:head=FOLDER``.
        digest: of the model; "" if its weights can't be read.
        acceptance: of the best head, on held-out text.
        num_answer_tokens: of the text.
        is_interrupted: True if Ctrl-C ended the training; the head is the best until then.
        run: losses and evaluations of the training.
    """

    folder: Path
    digest: str
    acceptance: Acceptance
    num_answer_tokens: int
    is_interrupted: bool
    run: Run


def train_head(
    model: Any,
    tokenizer: Any,
    out: Path | None = None,
    settings: HeadSettings | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> TrainedHead:
    """Train an EAGLE-3 head for a model on text that the model writes, and write its folder.

    The best head so far is in the folder from the first evaluation on. Ctrl-C ends the run with it; before that, the
    text so far is saved and KeyboardInterrupt is raised. Text is saved every two minutes or more often, and the state
    of the training at each evaluation, so a run that is killed can be resumed.

    Args:
        model: a transformers model in evaluation mode, on the device to train on.
        tokenizer: the model's.
        out: the folder; None for the one in specdec's cache folder in which ``auto`` and ``eagle3`` look.
        settings: time, sizes and seed.
        prompts: token ids of prompts to answer, instead of the model's own.
        resume: go on with the run that was interrupted in the folder, its time included. With other settings, or after
            a run that has ended, a new run goes on with the folder's text, and its head replaces only a worse one.
        watch: receives the plan and the progress.

    Raises:
        RequestError: without a tokenizer, for a folder that can't be written to, lacks room or has another run's text.
        ModelError: for a model whose states or attention can't be reached, or that writes hardly any text; memory ran
            out.
    """
    settings, watch = settings or HeadSettings(), watch or Watch()
    script, place = script_for(model, tokenizer, prompts), _place(model, out)
    folder, digest = place.folder, place.digest
    config = eagle3_config(model, settings.draft_vocab_size)
    target = TargetStates(model, config.target_layers(model.config.get_text_config().num_hidden_layers))
    prepare_folder(folder, _disk_bytes(config))
    own = OwnText(folder, digest, settings, resume)
    began = watch.clock() - own.seconds
    checkpoint = Checkpoint.load(folder, len(own.text), model.device) if own.seconds else None
    with without_cudnn(model.device):
        if checkpoint is None:
            with writing_to(folder):
                remove_checkpoint(folder)  # of other settings
            own.extend(model, script, settings, watch, began)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # of the rollout's keys and values
        remedy = f"what there is in {folder} is kept; make the draft vocabulary smaller, or go on with more free memory"
        with within_memory(f"{remedy} (--resume)"):
            training = _Training(model, target, own.text, settings, watch, place)
            head = training.run(began, checkpoint)
    if not head.is_interrupted:
        with writing_to(folder):
            remove_checkpoint(folder)
        own.note(0.0)
    return head


def write_own_text(
    model: Any,
    tokenizer: Any,
    out: Path | None = None,
    settings: HeadSettings | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> tuple[Text, Script]:
    """Let a model write text, in all the time given, without training a head; return it with what surrounds it.

    The text is kept in the folder, where ``train_head`` goes on with it. ``resume`` goes on with an interrupted run of
    the same settings, and returns the text of any other run as it is. Arguments and errors are those of ``train_head``.
    """
    settings = (settings or HeadSettings()).model_copy(update={"text_share": 1.0})
    script, place, watch = script_for(model, tokenizer, prompts), _place(model, out), watch or Watch()
    prepare_folder(place.folder, 0)
    own = OwnText(place.folder, place.digest, settings, resume)
    if own.seconds or not len(own.text):
        with without_cudnn(model.device):
            own.extend(model, script, settings, watch, watch.clock() - own.seconds)
        own.note(0.0)
    if not len(own.text):
        raise ModelError(f"{name_of(model)} wrote no answers in this time: allow more minutes")
    return own.text, script


def _place(model: Any, out: Path | None) -> Place:
    """Return where a model's head is put: ``out``, or where ``auto`` looks for it."""
    digest = model_digest(model)
    if out is None and not digest:
        raise RequestError(
            f"the weights of {name_of(model)} can't be read here, so auto wouldn't find its head: give a folder (--out)"
        )
    return Place(folder_for(digest) if out is None else out, digest)


def _disk_bytes(config: Eagle3Config) -> int:
    """Return the room that a head needs with two checkpoints: weights, the best weights and AdamW's moments."""
    head = Eagle3Head(config, torch.empty(0, device="meta"), "meta")
    num_weights = sum(parameter.numel() for parameter in head.parameters())
    num_trained = num_weights - head.lm_head.weight.numel()
    return 2 * (8 * num_weights + 8 * num_trained) + 4 * num_weights


class _Training:
    """The training of one head in the time that is left."""

    def __init__(
        self, model: Any, target: TargetStates, text: Text, settings: HeadSettings, watch: Watch, place: Place
    ) -> None:
        self.model, self.text, self.settings, self.watch, self.place = model, text, settings, watch, place
        self.num_layers = model.config.get_text_config().num_hidden_layers
        config = eagle3_config(model, settings.draft_vocab_size)
        self.head = Eagle3Head(config, model.get_input_embeddings().weight, model.device, torch.float32)
        vocabulary = draft_vocabulary(text, config.vocab_size, config.draft_vocab_size)
        self.head.set_vocabulary(vocabulary.to(model.device))
        self.rows, held_out = self._rows()
        norm = getattr(getattr(model.get_decoder(), "norm", None), "weight", torch.ones(config.hidden_size))
        output = model.get_output_embeddings().weight.detach(), norm.detach().to(model.device)
        generator = torch.Generator(model.device).manual_seed(settings.seed)
        training = self._training_settings()
        self.trainer = Trainer(self.head, target, output, held_out, training, generator, watch.clock)
        self.best: Acceptance | None = None
        self.seen = Run()

    def _rows(self) -> tuple[PackedRows, PackedRows]:
        """Return the packed rows to train on and those to evaluate on, whose documents don't change on a resume."""
        settings, shuffle = self.settings, np.random.default_rng(self.settings.seed)
        indices = np.arange(len(self.text))
        is_held_out = indices % settings.held_out_every == settings.held_out_every - 1
        rows, held_out = (
            pack(self.text.select(indices[chosen]), settings.row_length, shuffle)
            for chosen in (~is_held_out, is_held_out)
        )
        if len(rows) < self._training_settings().rows_per_batch or not len(held_out):
            raise ModelError(
                f"{name_of(self.model)} wrote {plural(len(self.text), 'different text')} of "
                f"{self.text.num_answer_tokens:,} tokens, too little to train on: allow more minutes, or give prompts "
                "that it answers (--prompts)"
            )
        return rows, held_out[:_HELD_OUT_ROWS]

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
                self.trainer.start(self.rows[:_START_ROWS])
                self.best = self._measured_before(folder)
                seconds = max(ends_at - reserve - self.watch.clock(), 1e-3)
            else:
                self.best, seconds = checkpoint.best, checkpoint.seconds
                ends_at = self.watch.clock() + seconds - checkpoint.resumed.run.seconds + reserve

            def save(state: Resumed) -> None:
                with writing_to(folder):
                    Checkpoint(len(self.text), seconds, self.best, state).save(folder)

            resumed = None if checkpoint is None else checkpoint.resumed
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
        output = self.model.get_output_embeddings().weight.detach()
        weights = TargetWeights(self.head.embeddings, lambda: output, self.num_layers)
        with suppress(ModelError):
            return self.trainer.evaluate(read_head(folder, weights, torch.float32))
        return None

    def _write(self, run: Run, found: Acceptance) -> None:
        """Write the head and its card; the files of the head before are replaced one by one, each as a whole."""
        folder, head = self.place.folder, copy.deepcopy(self.head)
        with torch.no_grad():
            head.fc.weight.mul_(self.trainer.scales)
        config = self.model.config
        special = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        is_reduced = head.config.draft_vocab_size < head.config.vocab_size
        facts = Card(
            target=str(getattr(self.model, "name_or_path", "") or name_of(self.model)),
            digest=self.place.digest,
            num_answer_tokens=self.text.num_answer_tokens,
            num_documents=len(self.text),
            num_trained_on=run.num_answer_tokens,
            minutes=run.seconds / 60,
            draft_vocab_size=head.config.draft_vocab_size,
            acceptance=found,
            seed=self.settings.seed,
        )
        with writing_to(folder), TemporaryDirectory(prefix=".part-", dir=folder) as name:
            part = Path(name)
            write_head(head, part, self.num_layers, special, with_output=is_reduced)
            (part / "README.md").write_text(card(facts, folder), encoding="utf-8")
            for file in ("model.safetensors", "README.md", "config.json"):  # readers look for the last
                (part / file).replace(folder / file)
