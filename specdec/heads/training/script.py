"""The tokens around what a target writes: a shared prefix, openings, and what leads to the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

_MARK = "\u2063mark\u2063"  # stands for a user's message in a rendered template
# Beginnings of instructions, so that the text covers more tasks than an open user turn alone brings up.
OPENINGS = (
    "", "", "", "", "", "", "", "", "", "", "", "",
    "Write a short story about", "Write a poem about", "Write an email to", "Write a blog post about",
    "Explain how", "Explain the difference between", "Explain why", "What is", "What are the", "How do I", "How does",
    "Why is", "Who was", "When did", "Where is", "Can you", "Describe", "List", "Give me", "Compare", "Suggest",
    "Summarize the following text:\n\n", "Summarize the following article in three sentences.\n\n",
    "Rewrite the following sentence", "Correct the grammar of this text:\n\n", "Translate the following sentence into",
    "Translate German to English:", "Extract the names from the following text:\n\n", "Classify the following",
    "Answer the question using the context.\n\nContext:", "Read the following passage and answer the question.\n\n",
    "Question:", "Solve this problem step by step:", "A store sells", "Tom has", "If a train", "Calculate",
    "Find the value of x", "Prove that", "Imagine you are", "Pretend to be", "You are a", "Let's play a game.",
    "Write a Python function that", "Write a function in Python to", "Complete this Python function:\n\n```python\ndef",
    "Fix the bug in this code:\n\n```python\n", "Implement", "Write a SQL query", "Write an HTML page",
    "def", "from typing import List\n\n\ndef", "What would happen if", "Is it true that", "Tell me about",
    "Help me plan", "Give advice on", "Design", "Discuss the", "Analyze", "What's your opinion on",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """The tokens around what the target writes.

    A document is ``prefix``, one of ``openings``, free text up to ``end_of_opening`` or a limit, ``bridge``, the
    answer up to one of ``ends``.

    Attributes:
        prefix: shared by all documents.
        openings: alternatives for what follows; may be empty lists.
        end_of_opening: the token that ends the free text before the answer; None for its length alone.
        bridge: what leads to the answer, from the end of the opening on.
        ends: tokens that end an answer.
    """

    prefix: list[int]
    openings: list[list[int]]
    end_of_opening: int | None
    bridge: list[int]
    ends: list[int]

    @classmethod
    def chat(cls, tokenizer: Any, ends: Sequence[int], openings: Sequence[str] = OPENINGS) -> Self:
        """Instructions by the open user turn of a chat template (Magpie, Xu et al. 2024, arXiv 2406.08464)."""
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
        )
        before, _, after = rendered.partition(_MARK)
        prefix, bridge = (tokenizer.encode(part, add_special_tokens=False) for part in (before, after))
        opened = [tokenizer.encode(each, add_special_tokens=False) if each else [] for each in openings]
        return cls(prefix, opened, bridge[0], bridge, list(ends))

    @classmethod
    def continuation(cls, first: int, ends: Sequence[int]) -> Self:
        """Free text after the token that begins a text, for models without a chat template."""
        return cls([first], [[]], None, [], list(ends))

    @property
    def description(self) -> str:
        """The text that the target writes, as the end of a sentence about it."""
        if self.bridge:
            return "instructions, by the open user turn of its chat template, and answers to them"
        return (
            "answers to the given prompts"
            if any(self.openings)
            else "free text, as there is no chat template with an open user turn"
        )
