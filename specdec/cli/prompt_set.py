"""The options that choose prompts to try strategies on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec.cli.option_groups import OptionGroup
from specdec.cli.options import Category, ChatPrompts, PerCategory, Prompts, read_prompts

if TYPE_CHECKING:
    from specdec.comparison import EvaluationPrompt


@dataclass(frozen=True, slots=True)
class PromptSet(OptionGroup):
    """The prompts of a file or the built-in ones, and whether they are sent as chats."""

    prompts: Prompts = None
    chat: ChatPrompts = None
    category: Category = None
    per_category: PerCategory = None

    def read(self) -> list["EvaluationPrompt"]:
        """Return the chosen prompts.

        Raises:
            RequestError: the file can't be read, or a category has no prompts.
        """
        return read_prompts(self.prompts, self.category, self.per_category)


BUILT_IN = PromptSet()
