"""The questions of ``specdec demo``: typical ones, of three different kinds."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A question of some kind; ``is_chat`` is False for a text to be continued without a chat template."""

    kind: str
    text: str
    is_chat: bool = True

    def encoded(self, tokenizer: Any) -> list[int]:
        """Return the prompt's token ids, by the chat template if the model has one."""
        if self.is_chat and getattr(tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": self.text}]
            return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
        return list(tokenizer(self.text)["input_ids"])


QUESTIONS = (
    Question("explain", "Explain in a few sentences why the sky is blue during the day and red at sunset."),
    Question(
        "extract",
        "Extract the name, date and place of each event from this text as a list.\n\n"
        "The Harbour Festival opens on 3 May in Bergen, where the choir sings in the old fish market. On 11 June the "
        "Night of Lights follows in Oslo, and the summer ends with the Apple Fair in Hardanger on 24 September.",
    ),
    Question(
        "write code",
        "Write a Python function that returns the n-th Fibonacci number, with a docstring and a short example.",
    ),
)
WARM_UP = Question("warm-up", "List three kinds of bread.")  # shares only the template with the others


def built_in_questions() -> tuple[Question, ...]:
    """Return prompts of the kinds that the built-in model was trained on; it can't answer ``QUESTIONS``."""
    from specdec import demo

    first = {prompt.category: prompt for prompt in reversed(demo.prompts())}
    chosen = [first[kind] for kind in ("dialogue", "arithmetic", "code")]
    return tuple(Question(prompt.category, prompt.text, prompt.is_instruction) for prompt in chosen)
