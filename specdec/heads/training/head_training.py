"""A draft head from nothing but its target, in a given time: the target writes text, and the head learns from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec.errors import ModelError, RequestError
from specdec.heads.training.checkpoint import FILE, Checkpoint, remove_checkpoint
from specdec.heads.training.disk import prepare_folder, writing_to
from specdec.heads.training.eagle3_training import Eagle3Training
from specdec.heads.training.faster_copy import faster_copy
from specdec.heads.training.memory import within_memory
from specdec.heads.training.own_text import OwnText
from specdec.heads.training.place import Place, check_folder
from specdec.heads.training.progress import Watch
from specdec.heads.training.run import TrainedHead
from specdec.heads.training.script import Script, script_for
from specdec.heads.training.settings import HeadSettings
from specdec.heads.training.target import TargetStates
from specdec.heads.training.text import TrainingText
from specdec.heads.training.timed_training import TimedTraining
from specdec.models.architecture import name_of
from specdec.models.fused_attention import without_cudnn


def draft_vocabulary(text: TrainingText, vocab_size: int, draft_vocab_size: int) -> torch.Tensor:
    """Return the most frequent tokens of the answers, (draft vocab,), in ascending order.

    Where answers have too few different tokens, the lowest ids fill the vocabulary.
    """
    counts = token_counts(text, vocab_size)
    chosen = np.argsort(-counts, kind="stable")[:draft_vocab_size]
    return torch.from_numpy(np.sort(chosen))


def token_counts(text: TrainingText, vocab_size: int) -> np.ndarray:
    """Return how often each token occurs in the answers, (vocab,)."""
    is_answer = np.ones(len(text.tokens), dtype=np.int64)
    # Each document's prefix is taken out by the running sum of +1 and -1 at its ends.
    edges = np.zeros(len(text.tokens) + 1, dtype=np.int64)
    np.add.at(edges, text.offsets[:-1], 1)
    np.add.at(edges, text.offsets[:-1] + text.answers, -1)
    is_answer -= edges.cumsum()[:-1]
    return np.bincount(text.tokens[is_answer > 0], minlength=vocab_size)


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
        resume: go on with the run that was interrupted in the folder, its time included. After a run that has ended, or
            that was interrupted with other arguments before its training, a new run goes on with the folder's text, and
            its head replaces only a worse one.
        watch: receives the plan and the progress.

    Raises:
        RequestError: without a tokenizer, for a folder that can't be written to, lacks room, has another run's text
            or none to resume, a model or a head of another kind, or a training that was interrupted with other
            arguments.
        ModelError: for a model whose states or attention can't be reached, or that writes hardly any text; memory ran
            out.
    """
    settings = settings or HeadSettings()
    if not settings.has_training:
        raise RequestError("text_share=1 leaves no time to train: give a smaller one, or call write_own_text")
    script, place = script_for(model, tokenizer, prompts), Place.of(model, out)
    folder, watch = place.folder, watch or Watch()
    vocab_size = len(model.get_input_embeddings().weight)
    own = OwnText(place, model, script, settings, resume)
    own.check_training(folder / FILE)
    check_folder(folder)
    checkpoint = Checkpoint.load(folder, len(own.text)) if own.seconds else None
    num_bytes = _checked_bytes(model, min(settings.draft_vocab_size, vocab_size))
    prepare_folder(folder, num_bytes, replaced=(FILE, "model.safetensors"))
    began = watch.clock() - own.seconds
    with without_cudnn(model.device):
        if checkpoint is None:
            own.extend(watch, began)
        else:  # the training has all of its text
            seconds = checkpoint.seconds - checkpoint.resumed.run.seconds
            watch.on_plan(own.plan_without_text(seconds / 60))
        smaller = f"remove {folder / FILE} and give a smaller --vocabulary with --resume"
        with within_memory(f"all files in {folder} are kept: free memory and go on (--resume), or {smaller}"):
            vocabulary = draft_vocabulary(own.text, vocab_size, settings.draft_vocab_size)
            training = Eagle3Training.untrained(faster_copy(model), vocabulary)
            head = TimedTraining(training, own.text, settings, watch, place).run(began, checkpoint)
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
) -> tuple[TrainingText, Script]:
    """Let a model write text, in all the time given, without training a head; return it with what surrounds it.

    The text is kept in the folder, where ``train_head`` goes on with it. ``resume`` goes on with an interrupted run of
    the same settings, and returns the text of any other run as it is. Arguments and errors are those of ``train_head``.
    """
    settings = (settings or HeadSettings()).model_copy(update={"text_share": 1.0})
    script, place, watch = script_for(model, tokenizer, prompts), Place.of(model, out), watch or Watch()
    own = OwnText(place, model, script, settings, resume)
    prepare_folder(place.folder, 0)
    if own.seconds or not len(own.text):
        with without_cudnn(model.device):
            own.extend(watch, watch.clock() - own.seconds)
        own.note(0.0)
    if not len(own.text):
        raise ModelError(f"{name_of(model)} wrote no answers in this time: allow more minutes")
    return own.text, script


def _checked_bytes(model: Any, draft_vocab_size: int) -> int:
    """Return the room that a head needs with two checkpoints: weights, the best weights and AdamW's moments.

    Raises:
        ModelError: for a model whose states can't be reached.
    """
    training = Eagle3Training.untrained(model, torch.arange(draft_vocab_size), device="meta")
    TargetStates(model, training.layer_ids)
    parameters = list(training.head.parameters())
    num_weights = sum(parameter.numel() for parameter in parameters)
    num_trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return 2 * (8 * num_weights + 8 * num_trained) + 4 * num_weights
