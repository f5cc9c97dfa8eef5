"""Another model, which Jacobi decoding decodes in fewer steps, from nothing but a model, in a given time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import ModelError, RequestError
from specdec.models.architecture import attention_kinds, name_of, state_kinds
from specdec.models.fused_attention import without_cudnn
from specdec.training.checkpoint import FILE, remove_checkpoint
from specdec.training.consistency_training import ConsistencyTraining
from specdec.training.disk import TEXT, prepare_folder, writing_to
from specdec.training.memory import within_memory
from specdec.training.own_text import OwnText
from specdec.training.place import Place, check_folder
from specdec.training.progress import Plan, TrainingPlan, Watch, rounded
from specdec.training.script_choice import script_for
from specdec.training.settings import ConsistencySettings
from specdec.training.tuned_model import TunedModel


@dataclass(frozen=True, slots=True)
class ConsistencyPlan(TrainingPlan):
    """The tuning of a copy of a model.

    Attributes:
        block_size: tokens of a block.
        folder: of the new model.
    """

    block_size: int
    folder: Path

    def lines(self, plan: Plan) -> list[str]:
        return [
            f"training: all weights of a copy of the model, for {rounded(plan.training_minutes, 3)} minutes; the copy "
            f"with most tokens per step is kept (Jacobi decoding with {self.block_size} guesses, held-out text)",
            f"this makes another model, in {self.folder}, which writes other texts; the given model stays as it is",
        ]


def train_consistency(
    model: Any,
    tokenizer: Any,
    out: Path,
    settings: ConsistencySettings | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> TunedModel:
    """Tune a copy of a model so that Jacobi decoding takes fewer steps, and write it into a folder.

    The result is another model, which writes other texts than the original (Kou et al. 2024, arXiv 2403.00835). The
    original is left as it is. The best model so far is in the folder from the first evaluation that is better than the
    original's on. Ctrl-C ends the run with it; before that, the text so far is saved and KeyboardInterrupt is raised.

    Args:
        model: a transformers model in evaluation mode, on the device to train on.
        tokenizer: the model's.
        out: the new model's folder.
        settings: time, sizes and seed.
        prompts: token ids of prompts to answer, instead of the model's own.
        resume: go on with the run that was interrupted in the folder, its time included. After a run that has ended, a
            new run goes on with the folder's text, and its model replaces only a worse one.
        watch: receives the plan and the progress.

    Raises:
        RequestError: without a tokenizer, for a folder that has another model, can't be written to, lacks room, has
            another run's text or none to resume, or has a training that was interrupted with other arguments.
        ModelError: for a model that can't be trained, that writes hardly any text, or of which no better one was found;
            memory ran out.
    """
    settings, watch = settings or ConsistencySettings(), watch or Watch()
    _check_model(model, settings)
    script, place = script_for(model, tokenizer, prompts), Place.of(model, out)
    check_folder(out, type(model).__name__ if (out / TEXT).exists() else None)
    own = OwnText(place, model, script, settings, resume)
    own.check_training(out / FILE)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    # Two checkpoints of weights and AdamW's moments, and the best model twice.
    num_bytes = num_weights * (2 * 12 + 2 * model.dtype.itemsize)
    prepare_folder(out, num_bytes, replaced=(FILE, "model.safetensors"))
    began = watch.clock() - own.seconds
    remedy = f"the text in {out} is kept: free memory, and go on (--resume)"
    with without_cudnn(model.device), within_memory(remedy):
        training = _training_on(own, tokenizer, place, settings, watch, began)
        is_interrupted = training.go()
    if not is_interrupted:
        with writing_to(out):
            remove_checkpoint(out)
        own.note(0.0)
    return training.result(is_interrupted)


def _training_on(
    own: OwnText, tokenizer: Any, place: Place, settings: ConsistencySettings, watch: Watch, began: float
) -> ConsistencyTraining:
    """Return the training that was interrupted in the folder, or a new one on text that is written first."""

    def prepared() -> ConsistencyTraining:
        return ConsistencyTraining(own.model, tokenizer, own.text, own.script.ends, settings, watch, place)

    plan = ConsistencyPlan(settings.block_size, place.folder)
    if own.seconds and (place.folder / FILE).exists():
        training = prepared()
        if training.resume():
            watch.on_plan(own.plan_without_text(training.seconds_left / 60, lambda _: plan))
            return training
        del training  # its copies of the weights
    own.extend(watch, began, lambda _: plan)
    training = prepared()
    training.begin(began)
    return training


def _check_model(model: Any, settings: ConsistencySettings) -> None:
    """Refuse a model whose passes over packed rows aren't those over single texts."""
    config = model.config.get_text_config()
    if kinds := state_kinds(config):
        raise ModelError(
            f"{name_of(model)} has layers of kind {' and '.join(kinds)}, whose states follow one text: it can't be "
            "trained for Jacobi decoding"
        )
    windows = [window.size for window in attention_kinds(config, name_of(model)).values() if window]
    longest = settings.row_length + settings.evaluated_tokens
    if windows and min(windows) < longest:
        raise RequestError(
            f"{name_of(model)} has layers with a window of {min(windows)} tokens, and texts of up to {longest} are "
            "used: give a smaller row length, ConsistencySettings(row_length=…)"
        )
