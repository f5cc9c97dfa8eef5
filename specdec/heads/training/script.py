"""The tokens around what a target writes: a shared prefix, openings, and what leads to the answer."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from specdec.errors import ModelError, RequestError, plural
from specdec.models.architecture import name_of
from specdec.requests.turn_ends import ends_of_turn

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


_FEWEST_TOKENS, _MOST_TOKENS = 2, 512  # of a prompt


def script_for(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]] | None) -> Script:
    """Return what surrounds the model's text: prompts, the chat template's open user turn, or nothing.

    Raises:
        RequestError: without a tokenizer, or if all prompts are too long or too short.
        ModelError: for a model without a token that begins or ends a text.

    Warns:
        UserWarning: if some prompts are left out, and if the chat template is.
    """
    if tokenizer is None:
        raise RequestError("training needs the model's tokenizer, and there is none: pass tokenizer=…")
    ends = _ends(model, tokenizer)
    if prompts is not None:
        return _prompted(prompts, _first(tokenizer, ends), ends)
    if getattr(tokenizer, "chat_template", None):
        with suppress(Exception):  # a template that needs more than a user's message
            script = Script.chat(tokenizer, list(dict.fromkeys((*ends, *ends_of_turn(tokenizer, {})))))
            if script.prefix and script.bridge:
                return script
        warnings.warn(
            "the chat template is left out, as it has no open user turn that the model could continue: the head is "
            "trained on free text; give chats with --prompts (prompts=…)",
            stacklevel=2,
        )
    return Script.continuation(_first(tokenizer, ends), ends)


def _ends(model: Any, tokenizer: Any) -> list[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    if not ends:
        raise ModelError(f"{name_of(model)} has no token that ends a text: set its generation_config.eos_token_id")
    return ends


def _first(tokenizer: Any, ends: Sequence[int]) -> int:
    first = getattr(tokenizer, "bos_token_id", None)
    return int(ends[0] if first is None else first)


def _prompted(prompts: Sequence[Sequence[int]], first: int, ends: list[int]) -> Script:
    chosen = [list(prompt) for prompt in prompts if _FEWEST_TOKENS <= len(prompt) <= _MOST_TOKENS]
    allowed = f"{_FEWEST_TOKENS} to {_MOST_TOKENS} tokens"
    if not chosen:
        raise RequestError(f"no prompt has {allowed}: give others, or none")
    if left_out := len(prompts) - len(chosen):
        num_long = sum(len(prompt) > _MOST_TOKENS for prompt in prompts)
        counts = {f"{num_long} of more than {_MOST_TOKENS} tokens": num_long}
        counts[f"{left_out - num_long} of fewer than {_FEWEST_TOKENS} tokens"] = left_out - num_long
        reasons = " and ".join(text for text, count in counts.items() if count)
        warnings.warn(f"{left_out} of {plural(len(prompts), 'prompt')} left out: {reasons}", stacklevel=2)
    shared = _shared([prompt[:-1] for prompt in chosen])
    return Script(shared or [first], [prompt[len(shared) :] for prompt in chosen], None, [], ends)


def _shared(prompts: Sequence[list[int]]) -> list[int]:
    """Return the tokens that all prompts begin with."""
    low, high = min(prompts), max(prompts)
    size = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:size]
