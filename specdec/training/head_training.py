"""A draft head from nothing but its target, in a given time: the target writes text, and the head learns from it."""

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, plural
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.files import TargetWeights
from specdec.heads.folder import read_head, write_head
from specdec.heads.made_here import folder_for, model_digest
from specdec.models.architecture import name_of
from specdec.models.fused_attention import without_cudnn
from specdec.training.acceptance import Acceptance
from specdec.training.card import Card, card
from specdec.training.disk import writing_to
from specdec.training.loop import Run, Trainer
from specdec.training.own_text import OwnText, script_for
from specdec.training.packing import PackedRows, pack
from specdec.training.progress import Progress, Watch
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
class TrainedHead:
    """The result of ``train_head``.

    Attributes:
        folder: the head's folder, for ``eagle3:head=FOLDER``.
        digest: of the model; "" if its weights can't be read.
        acceptance: of the best head, on held-out text.
        num_answer_tokens: of the text.
        is_interrupted: True if Ctrl-C ended the training; the head is the best until then.
    """

    folder: Path
    digest: str
    acceptance: Acceptance
    num_answer_tokens: int
    is_interrupted: bool


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
    text so far is saved and KeyboardInterrupt is raised.

    Args:
        model: a transformers model in evaluation mode, on the device to train on.
        tokenizer: the model's.
        out: the folder; None for the one in specdec's cache folder in which ``auto`` and ``eagle3`` look.
        settings: time, sizes and seed.
        prompts: token ids of prompts to answer, instead of the model's own.
        resume: go on with the text that the folder has.
        watch: receives the plan and the progress.

    Raises:
        RequestError: without a tokenizer, for a folder that can't be written to or that has another run's text.
        ModelError: for a model whose states or attention can't be reached, or that writes hardly any text.
    """
    settings, watch = settings or HeadSettings(), watch or Watch()
    script, digest = script_for(model, tokenizer, prompts), model_digest(model)
    folder = folder_for(digest) if out is None else out
    config = eagle3_config(model, settings.draft_vocab_size)
    target = TargetStates(model, config.target_layers(model.config.get_text_config().num_hidden_layers))
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    ends_at = watch.clock() + 60 * settings.minutes
    own = OwnText(folder, digest, resume)
    with without_cudnn(model.device):
        own.extend(model, script, settings, watch, ends_at)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # of the rollout's keys and values
        training = _Training(model, target, own.text, settings, watch)
        return training.run(folder, digest, ends_at)


class _Training:
    """The training of one head in the time that is left."""

    def __init__(self, model: Any, target: TargetStates, text: Text, settings: HeadSettings, watch: Watch) -> None:
        self.model, self.text, self.settings, self.watch = model, text, settings, watch
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

    def run(self, folder: Path, digest: str, ends_at: float) -> TrainedHead:
        """Train until the time is over; the folder always has the best head so far."""
        self.trainer.start(self.rows[:_START_ROWS])
        num_seen, is_interrupted = 0, False
        self.best = self._measured_before(folder)
        seconds = ends_at - self.watch.clock() - 60 * _RESERVE * self.settings.minutes

        def watch(run: Run) -> None:
            nonlocal num_seen
            if len(run.evaluations) > num_seen:
                num_seen = len(run.evaluations)
                update, found = run.evaluations[-1]
                if update == run.best and (self.best is None or found.tokens_per_step > self.best.tokens_per_step):
                    self.best = found
                    self._write(folder, digest, run, found)
            rate, best = run.num_answer_tokens / max(run.seconds, 1e-9), self.best
            left, length = ends_at - self.watch.clock(), best.tokens_per_step if best else 0.0
            self.watch.on_progress(Progress("training", run.num_answer_tokens, rate, left, length))

        try:
            self.trainer.train(self.rows, max(seconds, 1e-3), watch)
        except KeyboardInterrupt:
            if self.best is None:
                raise
            is_interrupted = True
        assert self.best is not None, "the start is evaluated"
        return TrainedHead(folder, digest, self.best, self.text.num_answer_tokens, is_interrupted)

    def _measured_before(self, folder: Path) -> Acceptance | None:
        """Measure the head of an earlier run, which only a better one replaces; None if there is none."""
        output = self.model.get_output_embeddings().weight.detach()
        weights = TargetWeights(self.head.embeddings, lambda: output, self.num_layers)
        with suppress(ModelError):
            return self.trainer.evaluate(read_head(folder, weights, torch.float32))
        return None

    def _write(self, folder: Path, digest: str, run: Run, found: Acceptance) -> None:
        """Write the head and its card; the files of the head before are replaced one by one, each as a whole."""
        head = copy.deepcopy(self.head)
        with torch.no_grad():
            head.fc.weight.mul_(self.trainer.scales)
        config = self.model.config
        special = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        is_reduced = head.config.draft_vocab_size < head.config.vocab_size
        facts = Card(
            target=str(getattr(self.model, "name_or_path", "") or name_of(self.model)),
            digest=digest,
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
