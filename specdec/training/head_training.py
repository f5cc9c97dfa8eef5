"""A draft head from nothing but its target, in a given time: the target writes text, and the head learns from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specdec.errors import ModelError, RequestError
from specdec.models.architecture import name_of
from specdec.models.fused_attention import without_cudnn
from specdec.training.acceptance_curves import CURVES
from specdec.training.checkpoint import FILE, Checkpoint, remove_checkpoint
from specdec.training.disk import prepare_folder, writing_to
from specdec.training.faster_copy import faster_copy
from specdec.training.kind_choice import KindChoice
from specdec.training.kinds import KINDS
from specdec.training.memory import within_memory
from specdec.training.own_text import OwnText
from specdec.training.place import Place, architecture_in, check_folder
from specdec.training.progress import Watch
from specdec.training.run import TrainedHead
from specdec.training.script import Script
from specdec.training.script_choice import script_for
from specdec.training.settings import HeadSettings
from specdec.training.target import TargetStates
from specdec.training.text import Text
from specdec.training.timed_training import TimedTraining
from specdec.training.vocabulary import draft_vocabulary


def train_head(
    model: Any,
    tokenizer: Any,
    out: Path | None = None,
    settings: HeadSettings | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> TrainedHead:
    """Train a head for a model on text that the model writes, and write its folder.

    The best head so far is in the folder from the first evaluation on. Ctrl-C ends the run with it; before that, the
    text so far is saved and KeyboardInterrupt is raised. Text is saved every two minutes or more often, and the state
    of the training at each evaluation, so a run that is killed can be resumed.

    Args:
        model: a transformers model in evaluation mode, on the device to train on.
        tokenizer: the model's.
        out: the folder; None for the one in specdec's cache folder in which ``auto`` and the strategy of the
            head's kind look.
        settings: kind, time, sizes and seed. Without a kind, the one of the folder's head or interrupted training, or
            that of highest predicted speed; the plan says why.
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
    if settings.text_share == 1:
        raise RequestError("text_share=1 leaves no time to train: give a smaller one, or call write_own_text")
    script, place = script_for(model, tokenizer, prompts), Place.of(model, out)
    folder, watch = place.folder, watch or Watch()
    vocab_size = len(model.get_input_embeddings().weight)
    own = OwnText(place, model, script, settings, resume)
    own.check_training(folder / FILE)
    checkpoint = Checkpoint.load(folder, len(own.text)) if own.seconds else None
    known = settings.kind or (checkpoint.kind if checkpoint else _kind_in(folder))
    architecture = KINDS[known].architecture if known else None
    check_folder(folder, architecture, {each.architecture: each.label for each in KINDS.values()})
    num_bytes = _checked_bytes(model, known, settings.draft_vocab_size)
    prepare_folder(folder, num_bytes, replaced=(FILE, "model.safetensors"))
    began = watch.clock() - own.seconds
    with without_cudnn(model.device):
        choice = _choice(model, settings, known, folder)
        _complete(own, checkpoint, watch, began, choice)
        kind = choice.kind(own.text.num_answer_tokens)
        smaller = f"remove {folder / FILE} and give a smaller --vocabulary with --resume"
        with within_memory(f"all files in {folder} are kept: free memory and go on (--resume), or {smaller}"):
            vocabulary = draft_vocabulary(own.text, vocab_size, settings.draft_vocab_size)
            training = kind.untrained(faster_copy(model), vocabulary)
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
) -> tuple[Text, Script]:
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
            own.extend(watch, watch.clock() - own.seconds, None)
        own.note(0.0)
    if not len(own.text):
        raise ModelError(f"{name_of(model)} wrote no answers in this time: allow more minutes")
    return own.text, script


def _complete(own: OwnText, checkpoint: Checkpoint | None, watch: Watch, began: float, choice: KindChoice) -> None:
    """Write the rest of the text; a training that was interrupted has all of it."""
    if checkpoint is None:
        own.extend(watch, began, choice.plan)
    else:
        seconds = checkpoint.seconds - checkpoint.resumed.run.seconds
        watch.on_plan(own.plan_without_text(seconds / 60, choice.plan))


def _kind_in(folder: Path) -> str | None:
    """Return the kind of the head in a folder; None without one."""
    found = architecture_in(folder)
    return next((name for name, kind in KINDS.items() if kind.architecture == found), None)


def _choice(model: Any, settings: HeadSettings, known: str | None, folder: Path) -> KindChoice:
    """Return the choice of the kind; ``known`` is the given one, or that of the folder's head or training."""
    if known is None:
        return KindChoice.measured(model, settings.draft_vocab_size)
    return KindChoice(known, "" if settings.kind else f"kind: {KINDS[known].label}, as in {folder}")


def _checked_bytes(model: Any, known: str | None, draft_vocab_size: int) -> int:
    """Return the room for a head of the known kind, else of any that may be chosen; refuses unreachable states."""
    num_draft_ids = min(draft_vocab_size, len(model.get_input_embeddings().weight))
    kinds = [KINDS[kind] for kind in ([known] if known else CURVES)]
    every = [kind.untrained(model, torch.arange(num_draft_ids), device="meta") for kind in kinds]
    for training in every:
        TargetStates(model, training.layer_ids)
    return max(_disk_bytes(training.head) for training in every)


def _disk_bytes(head: torch.nn.Module) -> int:
    """Return the room that a head needs with two checkpoints: weights, the best weights and AdamW's moments."""
    parameters = list(head.parameters())
    num_weights = sum(parameter.numel() for parameter in parameters)
    num_trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return 2 * (8 * num_weights + 8 * num_trained) + 4 * num_weights
