"""The options that choose prompts to try strategies on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specdec.apps.cli.option_groups import OptionGroup
from specdec.errors import plural

if TYPE_CHECKING:
    from specdec.apps.comparison import EvaluationPrompt


@dataclass(frozen=True, slots=True)
class PromptSet(OptionGroup):
    """The prompts of a file or the built-in ones."""

    prompts: Annotated[Path | None, typer.Option(help="JSON Lines file of prompts (default: the built-in prompts)")] = (
        None
    )
    category: Annotated[list[str] | None, typer.Option(help="only this category's prompts; may be repeated")] = None
    per_category: Annotated[int | None, typer.Option(min=1, help="maximum prompts per category")] = None

    def read(self) -> list["EvaluationPrompt"]:
        """Return the chosen prompts.

        Raises:
            RequestError: the file can't be read, or a category has no prompts.
        """
        from specdec.apps.comparison.prompts import demo_prompts, load_prompts, select

        read = demo_prompts() if self.prompts is None else load_prompts(self.prompts)
        return select(read, self.category or (), self.per_category)


@dataclass(frozen=True, slots=True)
class ChatPromptSet(PromptSet):
    """Prompts, and whether they are sent as chats."""

    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            show_default=False,
            help="apply the model's chat template to every prompt, or only to chat messages (default: to messages and "
            "the built-in instructions)",
        ),
    ] = None


def say_if_few(prompts: Sequence["EvaluationPrompt"]) -> None:
    """Print before a comparison that its prompts are too few for intervals."""
    from specdec.apps.comparison.statistics import FEWEST_PROMPTS

    if len(prompts) < FEWEST_PROMPTS:
        line = (
            f"{plural(len(prompts), 'prompt')}: fewer than {FEWEST_PROMPTS} give no interval, so nothing will be "
            "called faster; --prompts, --category and --per-category choose them"
        )
        Console(stderr=True, highlight=False).print(line, style="dim", markup=False, soft_wrap=True)


BUILT_IN, BUILT_IN_CHATS = PromptSet(), ChatPromptSet()
