"""The options of a run that writes text and trains on it: time, place, prompts, and how it goes on."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.apps.cli.model_choice import ModelChoice
from specdec.apps.cli.option_groups import OptionGroup
from specdec.apps.cli.options import MODEL_HELP, Threads, use_threads
from specdec.errors import RequestError

TrainedModel = Annotated[str, typer.Option(help=MODEL_HELP)]


@dataclass(frozen=True, slots=True)
class TrainingRun(OptionGroup):
    """The settings of a run that writes text with a model and trains on it."""

    minutes: Annotated[float, typer.Option(help="time for the whole run: writing the text and training on it")] = 60.0
    device: Annotated[
        str | None, typer.Option(help="torch device, e.g. cuda (default: a GPU if torch has one)", show_default=False)
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="the model's dtype, such as bfloat16 (default: the checkpoint's own)", show_default=False),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(help="prompts to answer, as JSON Lines (default: the model writes them)", show_default=False),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="random seed of the text and the training")] = 0
    resume: Annotated[
        bool, typer.Option("--resume", help="continue an interrupted run, or train on the text of an earlier one")
    ] = False
    threads: Threads = None

    def check(self, model: str, out: Path | None) -> None:
        """Refuse what can be refused before torch and transformers are imported.

        Raises:
            SpecdecError: for a time that isn't positive or isn't finite, or a model, prompts or a folder that don't
                suit.
        """
        from specdec.apps.comparison.prompts import load_prompts
        from specdec.heads.training.disk import check_resumed

        if not 0 < self.minutes < math.inf:
            raise RequestError(f"--minutes {self.minutes:g}: give more than 0, and a finite number")
        if self.prompts is not None:
            with warnings.catch_warnings(action="ignore"):  # they come when the prompts are used
                load_prompts(self.prompts)
        if out is not None:
            check_resumed(out, self.resume)
        ModelChoice(model, self.dtype).check_early()

    def load(self, model: str) -> tuple[Any, Any, list[list[int]] | None]:
        """Load the model, dense and for torch; return it, its tokenizer and the prompts as token ids, None without."""
        use_threads(self.threads)
        loaded, tokenizer = ModelChoice(model, self.dtype, self.device, weights="stock", backend="hf").load()
        return loaded, tokenizer, None if self.prompts is None else _encoded(self.prompts, tokenizer)


USUAL_RUN = TrainingRun()


def _encoded(path: Path, tokenizer: Any) -> list[list[int]]:
    """Read prompts, as token ids, instructions and texts through the chat template if there is one."""
    from specdec.apps.comparison.prompts import as_chat, load_prompts

    if tokenizer is None:
        raise RequestError("--prompts needs the model's tokenizer, and there is none")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    found = list[list[int]]()
    for each in as_chat(load_prompts(path), tokenizer, chat=has_template or None):
        given = each.prompt
        if isinstance(given, str):
            found.append(list(tokenizer.encode(given)))
        elif given and isinstance(given[0], int):
            found.append(list(given))
        else:
            rendered = tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
            found.append(list(tokenizer.encode(rendered, add_special_tokens=False)))
    return found
